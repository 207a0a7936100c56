"""``corral runs delete`` and ``prune``."""

from __future__ import annotations

import asyncio
from typing import get_args

import click
import msgspec

from corral._cli.command_types import examples, plain_option
from corral._cli.options import DB, JSON, completing
from corral._cli.ui.tables import format_time, table
from corral._cli.ui.terminal import echo, echo_json
from corral._runs import verbs
from corral._runs.run_record import Kind
from corral.errors import ConfigError


@click.command("delete")
@click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, shell_complete=completing("runs")
)
@DB
def delete(runs: tuple[str, ...], db: str | None) -> None:
    """Delete each RUN with its parts, its files and its worktrees, permanently.

    What runs or waits is not deleted. Branches and results in your own files stay.
    """
    for run in asyncio.run(verbs.delete(*runs, db=db)):
        echo(f"{run.id} deleted")


@click.command(
    "prune",
    epilog=examples(
        "corral runs prune --older-than 30d --dry-run", "corral runs prune --older-than 12h"
    ),
)
@plain_option("--older-than AGE", "Delete what ended longer ago: 12h, 30d.", required=True)
@plain_option("-k --kind", "Only this kind.", type=click.Choice(get_args(Kind)))
@plain_option("--dry-run", "Only show what would be deleted.")
@DB
@JSON
def prune(older_than: str, kind: Kind | None, dry_run: bool, db: str | None, as_json: bool) -> None:
    """Permanently delete runs that ended long ago, with all that is stored of them.

    What has not ended stays; so do run folders elsewhere, results of batches, and branches.
    """
    from corral._core.durations import seconds

    if older_than.strip().isdecimal():
        raise ConfigError(
            f"--older-than {older_than} has no unit",
            hint=f"Write {older_than}d for days, {older_than}h for hours.",
        )
    try:
        age = seconds(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than: {error}") from error
    removed = asyncio.run(verbs.prune(older_than=age, kind=kind, dry_run=dry_run, db=db))
    if as_json:
        echo_json(msgspec.json.encode(removed))
        return
    if removed:
        rows = [(run.kind, run.state, format_time(run.ended), run.id) for run in removed]
        echo(table(("kind", "state", "ended", "run"), rows))
    echo(f"{len(removed):,} {'would be deleted' if dry_run else 'deleted'}")
