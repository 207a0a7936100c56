"""``corral sessions answer``: answer what a run waits for, from another terminal."""

from __future__ import annotations

import click

from corral.cli.options import completing, read_prompt
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError, ResumeLost
from corral.events import Decision

STDIN = "-"
BY = "corral sessions answer"


@click.command("answer")
@click.argument("words", metavar="[ID] [TEXT]", nargs=-1, shell_complete=completing("sessions"))
@click.option("--allow", "decision", flag_value="allow_once", help="Allow the tool call.")
@click.option(
    "--allow-session",
    "decision",
    flag_value="allow_session",
    help="Allow it, and the same call later in the session.",
)
@click.option("--deny", "decision", flag_value="deny", help="Deny the tool call.")
@click.option("--cancel", "decision", flag_value="cancel", help="Deny it, and stop the agent.")
@click.option("--request", default="", metavar="ID", help="Which request, if several are open.")
@click.option(
    "-f", "--file", type=click.Path(), metavar="FILE", help="Read the text from FILE; - is stdin."
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="Instead of ID: the token of a notification; - reads it from stdin.",
)
def answer(
    words: tuple[str, ...],
    *,
    decision: Decision | None,
    request: str,
    file: str | None,
    token: str | None,
) -> None:
    """Answer a permission request or a question of a run.

    A permission request is answered with --allow or --deny, a question to a person with TEXT,
    --file or stdin. For a question of an agent, TEXT is an option, its number, or the answer; for
    several fields one line each, or a JSON object. --deny declines it. ID is a session, the
    beginning of its id, or 'last'. The first answer counts. The gates of pipelines are answered
    with corral pipeline answer.
    """
    name, text = _name_and_text(words, token)
    if decision is not None and (text is not None or file is not None):
        raise ConfigError("a decision and a text are both given")
    if text is not None and file is not None:
        raise ConfigError("TEXT and --file are both given")
    if file is not None:
        text = read_prompt(None, file)
    if token is not None:
        _answer_token(token, decision, text)
    elif decision is not None:
        from corral import live

        running = live.find(name)
        run = name if running is None else running[1].id
        live.answer(run, decision, request_id=request, by=BY)
        echo(f"{run} received the answer")
    elif not _answer_agent(name, text, request):
        _answer_question(name, text)


def _name_and_text(words: tuple[str, ...], token: str | None) -> tuple[str, str | None]:
    most = 1 if token is not None else 2
    if len(words) > most or (token is None and not words):
        raise ConfigError(
            "give the id of a session and at most one text, or --token and at most one text",
            hint="Quote a text that has spaces.",
        )
    if token is not None:
        return "", words[0] if words else None
    return words[0], words[1] if len(words) == 2 else None


def _answer_token(token: str, decision: Decision | None, text: str | None) -> None:
    from corral.engine import existing_runs

    if token == STDIN:
        token = (read_prompt(None, "-") or "").strip()
    if decision is None and not (text or "").strip():
        raise ConfigError("the answer is missing", hint="Give --allow, --deny or a text.")
    by = f"{BY} --token"
    answer = existing_runs.answer_with_token_sync
    used = answer(token, decision=decision, answer=text or "", by=by)
    echo(f"{used.run} received the answer")


def _answer_agent(name: str, text: str | None, request: str) -> bool:
    """Answer the question of an agent. Whether the run waits for one."""
    from corral import live

    running = live.find(name)
    pending = () if running is None else running[1].pending
    if running is None or not any(each.kind == "question" and each.request_id for each in pending):
        return False
    if text is None:
        text = read_prompt(None, STDIN) or ""
    live.answer(running[1].id, text=text, request_id=request, by=BY)
    echo(f"{running[1].id} received the answer")
    return True


def _answer_question(name: str, text: str | None) -> None:
    """Answer a session whose agent is a person; it need not be running."""
    from corral import live
    from corral.live.client import pipeline_gate
    from corral.sessions import question_files, store

    running = live.find(name)
    if running is not None and running[1].kind == "pipeline":
        raise pipeline_gate(running[1].id)
    if running is not None and any(each.kind == "permission" for each in running[1].pending):
        raise ConfigError(
            f"{running[1].id} waits for a permission, not for a text",
            hint="Answer with --allow or --deny.",
        )
    try:
        record = store.find(name if running is None else running[1].id)
    except ResumeLost as error:
        if running is None:
            error.hint = (
                "corral sessions list shows them; the gates of a pipeline are answered with"
                " corral pipeline answer RUN CHOICE."
            )
            raise
        raise ConfigError(f"{running[1].id} is not waiting for an answer") from error
    question = question_files.open_question(record)
    if question is None:
        raise ConfigError(f"session {record.meta.id} is not waiting for an answer")
    if text is None:
        text = read_prompt(None, "-") or ""
    if not text.strip():
        raise ConfigError("the answer is empty", hint="Give it as TEXT, with --file or on stdin.")
    question.write_answer(text)
    if store.is_in_use(record):
        echo(f"{record.meta.id} received the answer")
    else:
        echo(f"stored; to continue: corral run --resume {record.meta.id}")
