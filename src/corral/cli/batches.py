"""``corral batches``: list, show, resume and cancel the batches of a database."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys

import click
import msgspec

from corral.cli.options import DB, JSON, NEWEST, completing
from corral.cli.ui.tables import format_time, table
from corral.cli.ui.terminal import echo, echo_json
from corral.engine.dbos.database import require


@click.group("batches")
def command() -> None:
    """List, show, resume and cancel batches.

    `corral batch` starts a batch.
    """


@command.command("list")
@NEWEST
@DB
@JSON
def list_batches(limit: int, db: str | None, as_json: bool) -> None:
    """List the batches of a database, the newest first."""
    require()
    from corral.engine.batch import query

    found = asyncio.run(query.list_batches(db=db, limit=limit))
    if as_json:
        echo_json(msgspec.json.encode(found).decode())
        return
    rows = [
        (
            one.name,
            one.status,
            f"{one.succeeded + one.failed:,}/{one.total:,}",
            f"{one.failed:,}",
            _cost(one.cost_usd),
            format_time(one.created),
            format_time(one.ended),
            one.output or "–",
        )
        for one in found
    ]
    head = ("batch", "status", "done", "failed", "cost", "started", "ended", "output")
    echo(table(head, rows))


@command.command("show")
@click.argument("name", metavar="BATCH", shell_complete=completing("batches"))
@DB
@JSON
def show(name: str, db: str | None, as_json: bool) -> None:
    """Show the progress and the failures of BATCH.

    BATCH is its name, a unique beginning of it, or 'last'."""
    require()
    from corral.engine.batch import api, query

    name = asyncio.run(query.find_batch(name, db=db))
    found = asyncio.run(query.show_batch(name, db=db))
    one = found.overview
    if as_json:
        line = {
            **msgspec.to_builtins(one),
            "prompt": found.prompt,
            "agent": found.agent,
            "model": found.model,
            "folder": found.folder,
            "report": api.as_json(found.report),
        }
        echo_json(msgspec.json.encode(line).decode())
        return
    backend = " · ".join(filter(None, (found.agent, found.model)))
    echo(f"batch      {one.name}")
    echo(f"status     {one.status}")
    echo(
        f"tasks      {one.total:,}: {one.succeeded:,} done, {one.failed:,} failed,"
        f" {one.left:,} left"
    )
    echo(f"cost       {_cost(one.cost_usd)}")
    echo(f"started    {format_time(one.created)}")
    echo(f"ended      {format_time(one.ended)}")
    echo(f"output     {one.output or '–'}")
    echo(f"folder     {found.folder}")
    if one.kind == "batch":
        echo(f"prompt     {backend or 'the default agent'}: {_short(found.prompt)}")
    for each in found.report.failures:
        named = ", ".join(each.tasks) + (" …" if each.count > len(each.tasks) else "")
        echo(f"  {each.count:,} × {each.code} ({named}): {_short(each.message)}")
    if one.kind == "compare":
        echo(f"verdicts   corral compare show {one.name}")
    if one.status in ("interrupted", "budget"):
        if found.command is None:
            echo("continue   run the program that started it again")
        else:
            echo(f"continue   corral batches resume {one.name}")


@command.command("resume", context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="BATCH", shell_complete=completing("batches"))
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF BATCH]...")
@DB
def resume(name: str, options: tuple[str, ...], db: str | None) -> int:
    """Continue BATCH with the command that started it.

    The command is run again in the same folder; finished tasks are not repeated. OPTIONS of `corral
    batch` that are given here are added, such as a larger --max-cost, or --retry-failed for a
    batch that has ended.
    """
    require()
    from corral.cli.main import command as corral
    from corral.engine.batch import query
    from corral.errors import ConfigError

    name = asyncio.run(query.find_batch(name, db=db))
    found = asyncio.run(query.show_batch(name, db=db))
    status = found.overview.status
    if status == "running":
        raise ConfigError(f"{name} is running", hint=f"See: corral batches show {name}")
    if status in query.ENDED and not options:
        raise ConfigError(
            f"{name} has already ended: {status}", hint="To repeat failed tasks: --retry-failed"
        )
    if found.command is None:
        raise ConfigError(
            f"{name} was not started by a command", hint="Run the program that started it again."
        )
    try:
        os.chdir(found.command.cwd)
    except OSError as error:
        raise ConfigError(f"its folder {found.command.cwd}: {error.strerror}") from error
    words = [*found.command.words, *(() if db is None else ("--db", db)), *options]
    echo(f"corral {shlex.join([*found.command.words, *options])}", err=True)
    sys.argv[1:] = words  # as if it was typed
    with corral.make_context("corral", words) as context:
        code: int = corral.invoke(context)
    return code


@command.command("cancel")
@click.argument("name", metavar="BATCH", shell_complete=completing("batches"))
@DB
def cancel(name: str, db: str | None) -> None:
    """Cancel BATCH and end its running tasks.

    The command that started it can still continue it; the ended tasks count as failed.
    """
    require()
    from corral.engine.batch import query
    from corral.errors import ConfigError

    name = asyncio.run(query.find_batch(name, db=db))
    shown = asyncio.run(query.show_batch(name, db=db)).overview
    if shown.status in query.ENDED:
        raise ConfigError(f"{name} has already ended: {shown.status}")
    count = asyncio.run(query.cancel_batch(name, db=db))
    echo(f"{name} is cancelled, with {count:,} tasks")


def _cost(usd: float) -> str:
    return f"${usd:.4f}" if usd else "–"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 100 else flat[:99] + "…"
