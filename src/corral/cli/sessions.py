"""``corral sessions``: find, show, answer, stop and delete stored sessions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import click
import msgspec

from corral import live
from corral.cli.answer import answer
from corral.cli.budget import budget
from corral.cli.options import JSON, completing, moment
from corral.cli.ui.tables import format_time, table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, ResumeLost
from corral.sessions import index, store, transcript
from corral.sessions.warm import names as warm_names

_MARKS = {"success": "✓", "error": "✗", "denied": "⊘", "cancelled": "–"}


@click.group("sessions")
def command() -> None:
    """Find, show and delete stored sessions."""


@command.command("list")
@click.option("-a", "--agent", help="Only sessions with this agent.")
@click.option("-C", "--cwd", help="Only sessions in this folder or below; . is the current one.")
@click.option(
    "--since", metavar="AGE", help="Only sessions used since then: 2h, 7d, or 2026-11-30."
)
@click.option("-g", "--grep", metavar="TEXT", help="Only sessions that contain this text.")
@click.option("-n", "--limit", default=20, show_default=True, help="How many, the newest first.")
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
    cells = [
        (
            each.meta.id,
            each.meta.agent,
            _state(each.meta, running.get(each.meta.id)),
            format_time(each.meta.updated),
            _description(each, names.get(each.meta.id)),
        )
        for each in found
    ]
    echo(table(("session", "agent", "status", "last", "prompt"), cells))


def _state(meta: store.Meta, running: str | None) -> str:
    if running is not None:
        return running.replace("_", " ")
    return meta.status or "interrupted"  # no turn of it has ended, and no process has it


def _description(found: index.Match, name: str | None) -> str:
    text = f"…{found.snippet}…" if found.snippet else found.meta.title
    before = found.meta.continued_from
    more = f", continues {before}" if before else ""
    return f"{f'[{name}] ' if name else ''}{text}  ({found.meta.cwd}{more})"


NAME = click.argument("name", required=False, shell_complete=completing("sessions"))
GREP = click.option(
    "-g", "--grep", metavar="TEXT", help="Instead of NAME: the newest session with this text."
)


@command.command("show")
@NAME
@GREP
@click.option("--diff", is_flag=True, help="Also print how each turn changed files.")
@click.option("--json", "as_json", is_flag=True, help="Print the turns as JSON.")
def show(name: str | None, grep: str | None, diff: bool, as_json: bool) -> None:
    """Show what happened in a session; 'last' is the newest.

    For each turn: the prompt, the tool calls, the answer, the files changed, the model, the
    duration, the tokens and the cost.
    """
    record = _transcript(name, grep)
    records = _turns(record, diff=diff)
    if as_json:
        echo_json(_json(record, records))
        return
    meta = record.meta
    echo(f"{meta.id} · {meta.agent} · {meta.cwd} · {meta.status} · {meta.turns} turns")
    for line in _chain(meta):
        echo(line)
    for turn in records:
        echo(f"\n── {format_time(turn.started)} · {transcript.summary(turn)}")
        echo("".join(f"> {line}\n" for line in turn.prompt.splitlines()))
        for part in turn.parts:
            echo(part.strip() + "\n" if isinstance(part, str) else _call_line(part))
        for file in turn.files:
            echo(f"  {file.kind:8} {file.path}")
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
        turns = f"after {before.continued_turns} turns"
        yield f"continues {name} · {found.agent if found else 'deleted'} · {turns}"
        if found is None:
            break
        before = found
    for other in known.values():
        if other.continued_from == meta.id:
            yield f"continued in {other.id} · {other.agent}"


def _turns(record: store.SessionRecord, *, diff: bool) -> list[transcript.TurnRecord]:
    turns = transcript.turns(record.events())
    for turn in turns if diff else ():
        turn.diff = record.diff(turn.number)
    return turns


def _call_line(call: transcript.Call) -> str:
    why = f": {call.error}" if call.error else ""
    return f"{_MARKS.get(call.status, '?')} {' '.join(call.title.split())}{why}"


def _json(record: store.SessionRecord, turns: list[transcript.TurnRecord]) -> bytes:
    return msgspec.json.encode(
        {**msgspec.to_builtins(record.meta), "history": [msgspec.to_builtins(t) for t in turns]}
    )


@command.command("delete")
@click.argument("names", nargs=-1, required=True, shell_complete=completing("sessions"))
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
@click.option("-C", "--cwd", default=".", help="The folder of the session.  [default: here]")
@click.option("--all", "everywhere", is_flag=True, help="Stop all named sessions.")
@click.option("--forget", is_flag=True, help="The next run with this name starts a new session.")
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
    import asyncio

    from corral.sessions.warm import client

    for files, stored in known:
        stopped = asyncio.run(client.stop(files))
        if forget:
            files.meta.unlink(missing_ok=True)
        state = "stopped" if stopped else "was not running"
        echo(f"{stored.name} ({stored.cwd}) {state}{' and is forgotten' if forget else ''}")


command.add_command(answer)
command.add_command(budget)


def _transcript(name: str | None, grep: str | None) -> store.SessionRecord:
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
