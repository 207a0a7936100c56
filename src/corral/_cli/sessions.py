"""``corral sessions``: answer and stop sessions, and raise budgets."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from corral import live
from corral._cli.command_types import all_of, plain_option
from corral._cli.options import completing, read_prompt, resolve_last
from corral._cli.ui.terminal import echo
from corral._core.spending import LIMITS, Raise, dollars
from corral._sessions import store
from corral._sessions.warm import names as warm_names
from corral.errors import ConfigError, ResumeLost
from corral.events import Decision

if TYPE_CHECKING:
    from corral._metering.budget import Budget


@click.group("sessions")
def command() -> None:
    """Answer and stop sessions, and raise budgets."""


@command.command("stop")
@click.argument("name", required=False, shell_complete=completing("names"))
@plain_option("-C --cwd", "The folder of the session.  [default: here]", default=".")
@plain_option("--all everywhere", "Stop all named sessions.")
@plain_option("--forget", "The next run with this name starts a new session.")
def stop(name: str | None, cwd: str, everywhere: bool, forget: bool) -> None:
    """Stop the background process of the named session NAME.

    It was started by corral run --session NAME. The conversation stays stored: the next run with
    this name continues it.
    """
    if everywhere == (name is not None):
        raise ConfigError("give the name of a session, or --all")
    known = warm_names.all_names()
    if name is not None:
        files = warm_names.WarmFiles.of(name, os.path.realpath(cwd))
        known = [each for each in known if each[0].folder == files.folder]
        if not known:
            raise ConfigError(
                f"no session of this folder is called {name!r}",
                hint="corral runs show ID shows the name of a session.",
            )
    from corral._sessions.warm import client

    for files, stored in known:
        stopped = asyncio.run(client.stop(files))
        if forget:
            files.meta.unlink(missing_ok=True)
        state = "stopped" if stopped else "was not running"
        echo(f"{stored.name} ({stored.cwd}) {state}{' and is forgotten' if forget else ''}")


STDIN = "-"
BY = "corral sessions answer"


@command.command("answer")
@click.argument("words", metavar="[ID] [TEXT]", nargs=-1, shell_complete=completing("sessions"))
@plain_option("--allow decision", "Allow the tool call.", flag_value="allow_once")
@plain_option(
    "--allow-session decision",
    "Allow it, and the same call later in the session.",
    flag_value="allow_session",
)
@plain_option("--deny decision", "Deny the tool call.", flag_value="deny")
@plain_option("--cancel decision", "Deny it, and stop the agent.", flag_value="cancel")
@plain_option("--request ID", "Which request, if several are open.", default="")
@plain_option("-f --file FILE", "Read the text from FILE; - is stdin.")
@plain_option("--token TOKEN", "Instead of ID: the token of a notification; - reads it from stdin.")
@plain_option("--text comment", "With --token: a comment beside the choice of a gate.", default="")
def answer(
    words: tuple[str, ...],
    *,
    decision: Decision | None,
    request: str,
    file: str | None,
    token: str | None,
    comment: str,
) -> None:
    """Answer a permission request or a question of a run.

    A permission request is answered with --allow or --deny, a question to a person with TEXT,
    --file or stdin. For a question of an agent, TEXT is an option, its number, or the answer; for
    several fields one line each, or a JSON object. --deny declines it. ID is a session, the
    beginning of its id, or 'last'. The first answer counts. The gates of pipelines are answered
    with corral pipeline answer.
    """
    most = 1 if token is not None else 2
    if len(words) > most or (token is None and not words):
        raise ConfigError(
            "give the id of a session and at most one text, or --token and at most one text",
            hint="Quote a text that has spaces.",
        )
    name = "" if token is not None else resolve_last(words[0])
    text = words[-1] if len(words) == most else None
    if decision is not None and (text is not None or file is not None):
        raise ConfigError("a decision and a text are both given")
    if text is not None and file is not None:
        raise ConfigError("TEXT and --file are both given")
    if file is not None:
        text = read_prompt(None, file)
    if token is not None:
        _answer_token(token, decision, text, comment)
        return
    if comment:
        raise ConfigError(
            "--text is a comment for the gate of a pipeline",
            hint="Answer a gate with: corral pipeline answer RUN CHOICE --text COMMENT",
        )
    found = live.find(name)
    running = None if found is None else found[1]
    asks = running is not None and any(
        each.kind == "question" and each.request_id for each in running.pending
    )
    if decision is None and (running is None or not asks):
        _answer_person(name, running, text)
        return
    run = name if running is None else running.id
    if decision is not None:
        live.answer(run, decision, request_id=request, by=BY)
    else:
        text = (read_prompt(None, STDIN) or "") if text is None else text
        live.answer(run, text=text, request_id=request, by=BY)
    echo(f"{run} received the answer")


def _answer_token(token: str, decision: Decision | None, text: str | None, comment: str) -> None:
    from corral._engine import existing_runs

    if token == STDIN:
        token = (read_prompt(None, STDIN) or "").strip()
    if decision is None and not (text or "").strip():
        raise ConfigError("the answer is missing", hint="Give --allow, --deny or a text.")
    by = f"{BY} --token"
    answer = existing_runs.answer_with_token_sync
    used = answer(token, decision=decision, answer=text or "", comment=comment, by=by)
    echo(f"{used.run} received the answer")


def _answer_person(name: str, running: live.LiveRun | None, text: str | None) -> None:
    """Answer a session whose agent is a person; it need not be running."""
    if running is not None and running.kind == "pipeline":
        raise live.pipeline_gate(running.id)
    if running is not None and any(each.kind == "permission" for each in running.pending):
        raise ConfigError(
            f"{running.id} waits for a permission, not for a text",
            hint="Answer with --allow or --deny.",
        )
    try:
        record = store.find(name if running is None else running.id)
    except ResumeLost as error:
        if running is None:
            error.hint = (
                "corral runs list shows them; the gates of a pipeline are answered with"
                " corral pipeline answer RUN CHOICE."
            )
            raise
        raise ConfigError(f"{running.id} is not waiting for an answer") from error
    question = store.open_question(record)
    if question is None:
        raise ConfigError(f"session {record.meta.id} is not waiting for an answer")
    if text is None:
        text = read_prompt(None, STDIN) or ""
    if not text.strip():
        raise ConfigError("the answer is empty", hint="Give it as TEXT, with --file or on stdin.")
    question.write_answer(text)
    if store.is_in_use(record):
        echo(f"{record.meta.id} received the answer")
    else:
        echo(f"stored; to continue: corral run --resume {record.meta.id}")


MOST = 10**12
UNITS = {limit: kind.unit for limit, kind in LIMITS.items() if limit != "max_cost"}
"""Limits that are raised with a flag, which is their unit."""


# "-1.00" is an amount that is refused with a reason, not an unknown option.
@command.command("budget", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="ID", shell_complete=completing("sessions"))
@click.argument("amount", metavar="[AMOUNT]", required=False)
@all_of(
    plain_option(f"--{unit} N", f"For {limit}: +N more, or N in total.")
    for limit, unit in UNITS.items()
)
@plain_option("--db DB", "The database of a pipeline or batch.")
def budget(name: str, *, amount: str | None, db: str | None, **units: str | None) -> None:
    """Raise the budget of a running session, pipeline or batch.

    AMOUNT is in USD and changes max_cost: +1.00 is that much more, 5.00 the new limit. ID is a
    session, a run or a batch, the beginning of its id, or 'last'. A run that waits because its
    budget is spent goes on.
    """
    given = {"max_cost": amount, **{name: units[unit] for name, unit in UNITS.items()}}
    texts = {limit: text for limit, text in given.items() if text is not None}
    if not texts:
        raise ConfigError("no amount is given", hint="For example: corral sessions budget ID +1.00")
    if len({text.startswith("+") for text in texts.values()}) > 1:
        raise ConfigError("write all amounts with +, or none")
    is_total = not any(text.startswith("+") for text in texts.values())
    amounts = Raise.of({limit: _amount(limit, text) for limit, text in texts.items()})
    name = resolve_last(name, db=db)
    found = live.find(name)
    if found is not None and found[1].db is None:
        run = found[1]
        if is_total:  # by how much it must be raised
            if not run.budgets:
                raise ConfigError(f"{run.id} has no budget that can be raised")
            from corral._metering.budget import Budget

            limits = {limit: getattr(run.budgets[0], limit) for limit in LIMITS}
            amounts = Budget(**limits).missing(amounts)
        live.add_budget(run.id, **asdict(amounts))
        echo(f"{run.id}: the budget is raised")
        return
    if found is not None:
        name, used = found[1].id, found[1].db
        if db is None and used is not None and "***" not in used:  # else its password is not known
            db = used
    raised = _raise_durable(name, amounts, is_total, db)
    shown = [f"{key}={limit:g}" for key in LIMITS if (limit := getattr(raised, key)) is not None]
    spent = f"of which {dollars(raised.spent.cost)} are spent"
    echo(f"{name}: the budget is {', '.join(shown)}, {spent}")


def _amount(limit: str, text: str) -> float:
    flag = f"--{UNITS[limit]}" if limit in UNITS else "AMOUNT"
    try:
        number = int(text.replace("_", "")) if limit in UNITS else float(text)
    except ValueError:
        kind = "a whole number" if limit in UNITS else "a number"
        raise ConfigError(f"{flag} must be {kind}, such as +1 or 5, got: {text!r}") from None
    if not 0 < number < MOST:
        raise ConfigError(f"{flag} must be more than 0, got: {text}")
    return number


def _raise_durable(name: str, amounts: Raise, is_total: bool, db: str | None) -> Budget:
    """A pipeline or a batch in a database; none of its processes need run on this machine."""
    from corral._engine.dbos import database

    if database.is_installed() and database.is_there(database.find(db)):
        from corral._engine import service

        raised = asyncio.run(service.add_budget(name, amounts, is_total=is_total, db=db))
        if raised is not None:
            return raised
    try:
        session = store.find(name).meta.id
    except ResumeLost:
        raise ConfigError(
            f"no run is called {name!r}",
            hint="corral runs list shows what runs.",
        ) from None
    raise ConfigError(
        f"session {session} does not run: only the budget of a running one can be raised",
        hint=f"Resume it with a larger budget: corral run --resume {session} --max-cost USD",
    )
