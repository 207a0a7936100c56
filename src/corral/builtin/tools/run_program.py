"""Runs a program for a tool: limited in time, and nothing of it is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from corral.builtin.tools.workspace import Workspace
from corral.system import paths
from corral.system.process.process import Exit, Process, ProcessSpec
from corral.system.process.registry import ProcessRegistry

GRACE = 2.0
"""Seconds between TERM and KILL."""


class Completed(msgspec.Struct, frozen=True):
    exit: Exit
    late: bool
    """Its time was over before it ended."""
    stderr: str
    stderr_is_cut: bool
    """There was more before it."""


async def run_program(
    workspace: Workspace,
    argv: Sequence[str],
    cwd: Path,
    seconds: float,
    on_output: Callable[[bytes], bool | None],
    *,
    stdin: bytes | None = None,
    owner: str = "corral",
) -> Completed:
    """Run it and hear its stdout, until its end, its time, or until ``on_output`` answers True: it
    has heard enough. When this returns or raises, nothing that it started is left.

    What it left running is heard for a moment after its own end. Raises ``CorralError`` where
    it cannot be started. It is in the ledger, as ``owner``'s: where we are killed, somebody else
    ends it.
    """
    process = await Process.start(
        ProcessSpec(
            argv,
            cwd=cwd,
            env=workspace.child_env(),
            stdin=stdin,
            scratch=workspace.scratch,
            registry=ProcessRegistry(paths.process_registry(), owner),
        )
    )

    async def read_output() -> None:
        while chunk := await process.read():
            if on_output(chunk):
                return
            # A flood is always there to be read: without this no timeout would ever fire.
            await asyncio.sleep(0)

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await read_output()
    except TimeoutError:
        if not limit.expired():
            raise
        # What it says on being told to end belongs to its output.
        async with asyncio.TaskGroup() as group:
            group.create_task(read_output())
            await process.end(GRACE)
    finally:
        exited = await process.end(GRACE)
    return Completed(exited, limit.expired(), process.stderr, process.stderr_is_cut)
