"""``corral batches``: list, show and cancel the batches of a database. Starts no worker."""

from __future__ import annotations

import asyncio

import click
import msgspec

from corral.cli.options import DB, JSON, NEWEST, completing
from corral.cli.ui.tables import format_time, table
from corral.cli.ui.terminal import echo, echo_json
from corral.durable.dbos.database import require


@click.group("batches")
def command() -> None:
    """List, show and cancel batches.

    `corral batch` starts and continues a batch.
    """


@command.command("list")
@NEWEST
@DB
@JSON
def list_batches(limit: int, db: str | None, as_json: bool) -> None:
    """List the batches of a database, the newest first."""
    require()
    from corral.durable.batch import query

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
    """Show the progress and the failures of BATCH: its name, a unique beginning, or 'last'."""
    require()
    from corral.durable.batch import api, query

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
    echo(f"prompt     {backend or 'the default agent'}: {_short(found.prompt)}")
    for each in found.report.failures:
        named = ", ".join(each.tasks) + (" …" if each.count > len(each.tasks) else "")
        echo(f"  {each.count:,} × {each.code} ({named}): {_short(each.message)}")
    if one.status in ("interrupted", "budget"):
        echo("run the command that started it to continue")


@command.command("cancel")
@click.argument("name", metavar="BATCH", shell_complete=completing("batches"))
@DB
def cancel(name: str, db: str | None) -> None:
    """Cancel BATCH and end its running tasks.

    The command that started it can still continue it; the ended tasks count as failed.
    """
    require()
    from corral.durable.batch import query
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
