"""Workflow files of tests, and runs of them."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

from corral import workflows
from corral._engine import query, service
from corral._engine.continue_run import Changes, continue_run
from corral._engine.existing_runs import prepare_resume
from corral._engine.follow_run import FollowOptions
from corral._workflows import definition
from corral._workflows.definition import Workflow

HEAD = """
import asyncio
import dataclasses
import corral
from corral.workflows import Flow

"""
LOGGED = """
def step(flow, name, more="true", **options):
    return flow.command(f"echo {name} >> log; {more}", name=name, **options)
"""


def load(folder: Path, body: str, name: str = "flow.py") -> Workflow[..., Any]:
    """The only workflow of a file with this body."""
    path = folder / name
    path.write_text(HEAD + textwrap.dedent(body))
    return definition.load_text(str(path), definition.read_file(path))


def run(folder: Path, body: str, **options: Any) -> workflows.WorkflowResult[Any]:
    """Run it in memory, in this folder. What is no option of a run is an argument."""
    options.setdefault("durable", False)
    names = workflows.WorkflowKwargs.__annotations__
    args = {name: options.pop(name) for name in [*options] if name not in names}
    args |= args.pop("args", {})
    return workflows.run_sync(load(folder, body), args, cwd=folder, **options)


def logged(folder: Path) -> list[str]:
    """The names of the commands of ``LOGGED`` that have run."""
    path = folder / "log"
    return path.read_text().split() if path.exists() else []


async def cancel_unstarted_try(run: str, db: str, changes: Changes) -> None:
    """Resume a run on a queue that has no worker, and cancel that try."""
    found = await prepare_resume(run, changes, db=db)
    resumed = asyncio.create_task(continue_run(found, FollowOptions(db=db), queue="no-worker"))
    while (await query.show(run, db=db)).tries == found.run.tries and not resumed.done():
        await asyncio.sleep(0.02)
    await service.cancel(run, db=db)
    assert (await resumed).status == "cancelled"
