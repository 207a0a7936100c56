"""``corral runs list`` and ``show``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from corral._cli.command_types import examples, plain_option
from corral._cli.options import DB, JSON, NEWEST, completing, moment, name_other_files
from corral._cli.ui.tables import format_cost, format_time, table
from corral._cli.ui.terminal import echo, echo_json
from corral._runs import verbs
from corral._runs.run_record import Kind, State
from corral.errors import ConfigError, ResumeLost

if TYPE_CHECKING:
    from corral._runs.run_record import Run

TEXT = plain_option("-g --text TEXT", "Instead of RUN: the newest run with this text.")
HEAD = ("run", "kind", "state", "changed", "cost", "title", "project")


@click.command(
    "list",
    epilog=examples(
        "corral runs list --state waiting", "corral runs list --kind session --text retry --json"
    ),
)
@plain_option("-k --kind", "Only this kind.", type=click.Choice(get_args(Kind)))
@plain_option("-s --state", "Only in this state.", type=click.Choice(get_args(State)))
@plain_option("-C --project DIR", "Only of the project that contains this folder.")
@plain_option("-a --agent TEXT", "Only with this agent.")
@plain_option("-g --text TEXT", "Only with this text: in the title, or anywhere in a session.")
@plain_option("--since AGE", "Only changed since then: 2h, 7d, or 2026-11-30.")
@plain_option("--parts", "Also runs that are parts of others.")
@NEWEST
@DB
@JSON
def list_runs(  # noqa: PLR0913
    *,
    kind: Kind | None,
    state: State | None,
    project: str | None,
    agent: str | None,
    text: str | None,
    since: str | None,
    parts: bool,
    limit: int,
    db: str | None,
    as_json: bool,
) -> None:
    """List runs of all kinds; those that run or wait come first, then the newest."""
    found = asyncio.run(
        verbs.list(
            kind=kind,
            state=state,
            project=project,
            agent=agent,
            text=text,
            since=None if since is None else moment("--since", since),
            parts=parts,
            limit=limit,
            db=db,
        )
    )
    name_other_files(db)
    if as_json:
        echo_json(msgspec.json.encode(found))
        return
    echo(table(HEAD, [_row(run) for run in found]))


def _row(run: Run) -> tuple[str, ...]:
    cost = "scripted" if run.scripted else format_cost(run.cost.usd)
    changed = format_time(max(run.updated, run.started))
    place = f"{run.place}: " if run.place else ""
    return (run.id, run.kind, run.state, changed, cost, f"{place}{run.title}", run.project)


def chosen_run(run: str | None, text: str | None) -> str:
    """The run that was named, or the id of the newest with this text. Raises ``ConfigError``."""
    if text is None and run is not None:
        return run
    if text is None or run is not None:
        raise ConfigError("give the id of a run ('last' is the newest), or --text TEXT")
    found = asyncio.run(verbs.list(text=text, limit=1))
    if not found:
        raise ResumeLost(f"no run contains {text!r}", hint="corral runs list")
    return found[0].id


@click.command("show", epilog=examples("corral runs show last", "corral runs show last --json"))
@click.argument("run", metavar="[RUN]", required=False, shell_complete=completing("runs"))
@TEXT
@plain_option("--diff", "Also print how each turn of a session changed files.")
@DB
@JSON
def show(run: str | None, text: str | None, diff: bool, db: str | None, as_json: bool) -> None:
    """Show RUN: its state, cost and parts, and then what its kind has: the conversation of a
    session, the path of a pipeline, the tasks of a batch, attempts, findings, or branches."""
    details = asyncio.run(verbs.show(chosen_run(run, text), db=db))
    if as_json:
        content = {"run": details.run, "content": details.content, "parts": details.parts}
        echo_json(msgspec.json.encode(content))
        return
    for line in (*head_lines(details.run), *details.lines):
        echo(line)
    for change in details.diffs if diff else ():
        echo(change, nl=not change.endswith("\n"))
    if details.parts:
        rows = [(part.id, part.place, part.state, part.title) for part in details.parts]
        echo(f"\n{table(('part', 'place', 'state', 'title'), rows)}")


def head_lines(run: Run) -> Iterator[str]:
    """What every run has, as text."""
    code = f" ({run.code})" if run.code else ""
    yield f"run        {run.id}"
    yield f"kind       {run.kind}"
    yield f"state      {run.state}{': ' + run.reason + code if run.reason else ''}"
    for name in ("title", "project", "label", "agent", "model", "verdict"):
        if text := getattr(run, name):
            yield f"{name:10} {text}"
    if run.parent:
        yield f"part of    {run.parent}{' at ' + run.place if run.place else ''}"
    tokens = "" if run.usage.total is None else f" · {run.usage.total:,} tokens"
    yield f"cost       {'scripted' if run.scripted else format_cost(run.cost.usd)}{tokens}"
    yield f"started    {format_time(run.started)}"
    if run.ended is not None:
        yield f"ended      {format_time(run.ended)}"
    if run.tries > 1:
        yield f"tries      {run.tries}"
