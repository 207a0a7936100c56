"""``corral workflow list`` and ``show``. They read the database; the program is not run."""

from __future__ import annotations

import click

from corral._cli.options import DB, JSON, NEWEST, RUN
from corral._cli.pipeline.runs import print_runs, show_run


@click.command("list")
@NEWEST
@DB
@JSON
def list_runs(limit: int, db: str | None, as_json: bool) -> None:
    """List the runs of workflows in a database, the newest first."""
    print_runs("workflow", limit, db, as_json=as_json)


@click.command("show")
@RUN
@DB
@JSON
def show(name: str, db: str | None, as_json: bool) -> None:
    """Show the steps of RUN, its status, and what it waits for.

    RUN is its id, a unique beginning of it, its run folder, or 'last'.
    """
    show_run(name, db, as_json=as_json)
