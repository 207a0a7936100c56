"""``corral sessions``: find, show, answer, stop and delete stored sessions."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import asdict

from corral import live
from corral._cli.command_types import all_of, examples, plain_option
from corral._cli.options import JSON, completing, moment, read_prompt, resolve_last, run_argument
from corral._cli.ui.live_progress import MARKS
from corral._cli.ui.tables import format_time, table
from corral._cli.ui.terminal import echo, echo_json
from corral._core.spending import LIMITS, Raise, dollars
from corral._core.terminal_text import counted
from corral._runs import transcript
from corral._sessions import index, store
from corral._sessions.warm import names as warm_names
from corral.errors import ConfigError, ResumeLost
from corral.events import Decision

if TYPE_CHECKING:
    from corral._metering.budget import Budget


@click.group("sessions")
def command() -> None:
    """Find, show and delete stored sessions."""


@command.command(
    "list",
    epilog=examples("corral sessions list --since 7d", "corral sessions list --grep retry --json"),
)
@plain_option("-a --agent TEXT", "Only sessions with this agent.")
@plain_option("-C --cwd TEXT", "Only sessions in this folder or below; . is the current one.")
@plain_option("--since AGE", "Only sessions used since then: 2h, 7d, or 2026-11-30.")
@plain_option("-g --grep TEXT", "Only sessions that contain this text.")
@plain_option("-n --limit", "How many, the newest first.", default=20)
@JSON
def list_sessions(
    agent: str | None,
    cwd: str | None,
    since: str | None,
    grep: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the stored sessions, the newest first.

    --grep searches prompts, answers, tool calls and errors, in any case of letters.
    """
    query = index.Query(
        agent=agent,
        cwd=None if cwd is None else os.path.realpath(cwd),
        since=None if since is None else moment("--since", since),
        grep=grep,
        limit=limit,
    )
    found = index.search(query)
    running = {run.id: run.state for run in live.runs() if run.state != "idle"}
    names = {each.session: each.name for _, each in warm_names.all_names()}
    if as_json:
        rows = [
            {
                **msgspec.to_builtins(each.meta),
                "name": names.get(each.meta.id),
                "live": running.get(each.meta.id),
            }
            | ({"snippet": each.snippet} if grep else {})
            for each in found
        ]
        echo_json(json.dumps(rows))
        return
    cells: list[tuple[str, ...]] = []
    for match in found:
        meta, name = match.meta, names.get(match.meta.id)
        # Without a status, no turn of it has ended, and no process has it.
        status = running.get(meta.id, meta.status or "interrupted").replace("_", " ")
        text = f"…{match.snippet}…" if match.snippet else meta.title
        more = f", continues {meta.continued_from}" if meta.continued_from else ""
        prompt = f"{f'[{name}] ' if name else ''}{text}  ({meta.cwd}{more})"
        cells.append((meta.id, meta.agent, status, format_time(meta.updated), prompt))
    echo(table(("session", "agent", "status", "last", "prompt"), cells))


NAME = run_argument("session", required=False, completed="sessions")
GREP = plain_option("-g --grep TEXT", "Instead of NAME: the newest session with this text.")


def _find_transcript(name: str | None, grep: str | None) -> store.SessionRecord:
    """The session with this name, or the newest with this text."""
    if grep is not None and name is None:
        found = index.search(index.Query(grep=grep, limit=1))
        if not found:
            raise ResumeLost(f"no session contains {grep!r}", hint="corral sessions list")
        name = found[0].meta.id
    elif name is None or grep is not None:
        raise ConfigError("give the id of a session ('last' is the newest), or --grep TEXT")
    record = store.find(name)
    if not record.has_transcript:
        raise ResumeLost(
            f"session {record.meta.id} has no transcript",
            hint="It was run with record=False, or is the question of a person.",
        )
    return record


@command.command(
    "show", epilog=examples("corral sessions show last", "corral sessions show last --diff")
)
@NAME
@GREP
@plain_option("--diff", "Also print how each turn changed files.")
@plain_option("--json as_json", "Print the turns as JSON.")
def show(name: str | None, grep: str | None, diff: bool, as_json: bool) -> None:
    """Show what happened in a session; 'last' is the newest.

    For each turn: the prompt, the tool calls, the answer, the files changed, the model, the
    duration, the tokens and the cost.
    """
    record = _find_transcript(name, grep)
    turns = transcript.turns(record.events())
    for turn in turns if diff else ():
        turn.diff = record.diff(turn.number)
    meta = record.meta
    if as_json:
        echo_json(msgspec.json.encode({**msgspec.to_builtins(meta), "history": turns}))
        return
    echo(f"{meta.id} · {meta.agent} · {meta.cwd} · {meta.status} · {counted(meta.turns, 'turn')}")
    for line in _chain(meta):
        echo(line)
    for turn in turns:
        echo(f"\n── {format_time(turn.started)} · {transcript.summary(turn)}")
        echo("".join(f"> {line}\n" for line in turn.prompt.splitlines()))
        for part in turn.parts:
            if isinstance(part, str):
                echo(part.strip() + "\n")
            else:
                why = f": {part.error}" if part.error else ""
                echo(f"{MARKS.get(part.status, '?')} {' '.join(part.title.split())}{why}")
        for file in turn.files:
            echo(f"  {file.kind:8} {file.path}")
        if turn.verdict:
            echo(f"  {turn.verdict}")
        for gap in turn.gaps:
            echo(f"  gap      {gap}")
        if diff and turn.files:
            echo(f"\n{turn.diff or 'The changes are not stored.'}", nl=not turn.diff)


def _chain(meta: store.Meta) -> Iterator[str]:
    """The sessions that this one continues, the nearest first, and those that continue it."""
    known = {each.meta.id: each.meta for each in store.all_sessions()}
    seen = {meta.id}
    before = meta
    while (name := before.continued_from) is not None and name not in seen:
        seen.add(name)
        found = known.get(name)
        turns = f"after {counted(before.continued_turns, 'turn')}"
        yield f"continues {name} · {found.agent if found else 'deleted'} · {turns}"
        if found is None:
            break
        before = found
    for other in known.values():
        if other.continued_from == meta.id:
            yield f"continued in {other.id} · {other.agent}"


@command.command("delete")
@run_argument("session", "names", nargs=-1, required=True, completed="sessions")
def delete(names: tuple[str, ...]) -> None:
    """Delete stored sessions with their transcripts, permanently."""
    records = [store.find(name) for name in names]  # all are known before one is deleted
    for record in records:
        if store.is_in_use(record):
            raise ConfigError(
                f"session {record.meta.id} is in use", hint="End its run first, or do not name it."
            )
    for record in records:
        record.close(keep=False)
        echo(f"{record.meta.id} deleted")
    warm_names.forget({record.meta.id for record in records})


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
                hint="corral sessions list shows names in brackets.",
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
                "corral sessions list shows them; the gates of a pipeline are answered with"
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
            hint="corral sessions list and corral pipeline runs show what runs.",
        ) from None
    raise ConfigError(
        f"session {session} does not run: only the budget of a running one can be raised",
        hint=f"Resume it with a larger budget: corral run --resume {session} --max-cost USD",
    )
