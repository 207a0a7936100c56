"""``runs``, ``show``, ``answer`` and ``cancel`` of pipelines and workflows. They execute nothing:
they read and write the database, and the process that executes the run reacts."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING

import click

from corral._cli.command_types import plain_option
from corral._cli.execution import find_pipeline_run
from corral._cli.options import DB, RUN, database_option
from corral._cli.ui.terminal import echo
from corral._engine.dbos.database import require
from corral.errors import ConfigError, FormatUnsupported

if TYPE_CHECKING:
    pass


@click.command("answer")
@RUN
@click.argument("choice", required=False)
@plain_option("--gate ID", "Which gate, if several are open.")
@plain_option(
    "--text", "A comment with the answer; or the answer itself, for a free-text gate.", default=""
)
@plain_option("--skip", "Refuse to answer: the gate fails.")
@DB
def answer(
    name: str, choice: str | None, *, gate: str | None, text: str, skip: bool, db: str | None
) -> None:
    """Answer a question of RUN: CHOICE is a key, a label or a target.

    RUN need not be running. Only the first answer to a question counts.
    """
    require()
    if skip and (choice or text):
        raise ConfigError("--skip and an answer are both given")
    from corral._engine import existing_runs, query
    from corral._pipelines.scheduler.commands import Answer

    name = find_pipeline_run(name, db)
    try:
        by = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no user name for this uid
        by = ""
    given = Answer(value=choice or "", text=text, skipped=skip)
    asyncio.run(existing_runs.answer(name, given, gate=gate, by=by, db=db))
    echo(f"{name} received the answer")
    found = asyncio.run(query.show(name, db=db))
    if found.status == "interrupted":
        kind = "pipeline" if found.run_input.program is None else "workflow"
        line = f"corral {kind} resume {name}{database_option(db)}"
        echo(f"the run is not active; continue with: {line}", err=True)


@click.command("cancel")
@RUN
@plain_option("--reason", "The reason, stored with the run.", default="")
@DB
def cancel(name: str, reason: str, db: str | None) -> None:
    """Cancel RUN and end everything that it has running. A run that has ended is not changed."""
    require()
    from corral._engine import existing_runs, query, run_list

    name = find_pipeline_run(name, db)
    try:
        found = asyncio.run(query.show(name, db=db))
        if found.output is not None:
            raise ConfigError(f"{name} has already ended: {found.output.status}")
    except FormatUnsupported:  # a list has what is needed to cancel it
        rows = asyncio.run(run_list.list_runs(limit=None, db=db))
        if any(row.ended is not None for row in rows if row.id == name):
            raise
    asyncio.run(existing_runs.cancel(name, reason=reason, db=db))
    echo(f"{name} is cancelled")
