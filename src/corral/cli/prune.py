"""``corral prune``: remove runs and batches that ended long ago."""

from __future__ import annotations

import asyncio

import click
import msgspec

from corral.cli.options import DB, JSON
from corral.cli.ui.tables import format_time, table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError


@click.command("prune")
@click.option(
    "--older-than",
    required=True,
    metavar="AGE",
    help="Remove what ended longer ago: 12h, 30d.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@DB
@JSON
def command(older_than: str, dry_run: bool, db: str | None, as_json: bool) -> None:
    """Permanently remove pipeline runs and batches that ended long ago.

    They are removed from the database, with their folders in corral's home. What has not ended
    stays; so do run folders elsewhere, results of batches, and branches.
    """
    from corral.durable.dbos.database import require

    require()
    from corral.durable import retention
    from corral.durations import seconds

    try:
        age = seconds(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than: {error}") from error
    removed = asyncio.run(retention.prune(older_than=age, db=db, dry_run=dry_run))
    if as_json:
        echo_json(msgspec.json.encode(removed).decode())
        return
    if removed:
        rows = [(each.kind, each.status, format_time(each.ended), each.name) for each in removed]
        echo(table(("kind", "status", "ended", "name"), rows))
    would = "would be removed" if dry_run else "removed"
    echo(f"{len(removed):,} {would}")
