"""``corral prune``: remove sessions, runs, batches, comparisons and merge queues that ended long
ago."""

from __future__ import annotations

import asyncio

import click
import msgspec

from corral._cli.command_types import examples, plain_option
from corral._cli.options import DB, JSON
from corral._cli.ui.tables import format_time, table
from corral._cli.ui.terminal import echo, echo_json
from corral._sessions.retention import Pruned, prune_sessions
from corral.errors import ConfigError

ENGINE_KINDS = ("runs", "batches")


@click.command(
    "prune",
    epilog=examples("corral prune --older-than 30d --dry-run", "corral prune --older-than 12h"),
)
@plain_option("--older-than AGE", "Remove what ended longer ago: 12h, 30d.", required=True)
@plain_option(
    "--only kinds",
    "Remove only these (repeatable).  [default: all]",
    type=click.Choice(["sessions", "comparisons", "merges", *ENGINE_KINDS]),
    multiple=True,
)
@plain_option("--dry-run", "Only show what would be removed.")
@DB
@JSON
def command(
    older_than: str, kinds: tuple[str, ...], dry_run: bool, db: str | None, as_json: bool
) -> None:
    """Permanently remove sessions, pipeline runs, batches, comparisons and merge queues that ended
    long ago.

    Sessions are removed with their transcripts, comparisons with their commits, runs and batches
    from the database, with their folders in corral's home, and merge queues with the records of
    which session made a branch. What has not ended stays; so do run folders elsewhere, results of
    batches, and branches.
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
    removed: list[Pruned] = []
    if "sessions" in kinds or not kinds:
        removed += prune_sessions(older_than=age, dry_run=dry_run)
    if "comparisons" in kinds or not kinds:
        from corral._comparison.existing import prune as prune_comparisons

        removed += prune_comparisons(older_than=age, dry_run=dry_run)
    if "merges" in kinds or not kinds:
        from corral._merging.old_queues import prune_queues

        removed += prune_queues(older_than=age, dry_run=dry_run)
    if not kinds or not {"sessions", "comparisons", "merges"}.issuperset(kinds):
        removed += _prune_engine(age, kinds, db=db, dry_run=dry_run)
    if as_json:
        echo_json(msgspec.json.encode(removed).decode())
        return
    if removed:
        rows = [(each.kind, each.status, format_time(each.ended), each.name) for each in removed]
        echo(table(("kind", "status", "ended", "name"), rows))
    would = "would be removed" if dry_run else "removed"
    echo(f"{len(removed):,} {would}")


def _prune_engine(
    age: float, kinds: tuple[str, ...], *, db: str | None, dry_run: bool
) -> list[Pruned]:
    """Runs and batches. Without the engine there are none, unless they were asked for."""
    from corral._engine.dbos.database import is_installed, require

    if not is_installed() and db is None and not kinds:
        return []
    require()
    from corral._engine import retention

    wanted = {"runs": "run", "batches": "batch"}
    chosen = {wanted[kind] for kind in kinds or ENGINE_KINDS if kind in wanted}
    return asyncio.run(retention.prune(older_than=age, kinds=chosen, db=db, dry_run=dry_run))
