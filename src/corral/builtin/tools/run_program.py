"""Run a program for a tool, limited in time. Nothing of it is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from corral.builtin.tools.workspace import Workspace
from corral.system import paths
from corral.system.process.process import Exit, Process, ProcessSpec
from corral.system.process.tree import ProcessRegistry

GRACE = 2.0
"""Seconds between TERM and KILL."""


class Completed(msgspec.Struct, frozen=True):
    exit: Exit
    late: bool
    """Whether it was ended because its time was over."""
    stderr: str
    stderr_is_cut: bool
    """Whether there was more text before ``stderr``."""


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
    """Run a program and pass its stdout to ``on_output``, until it ends, its time is over, or
    ``on_output`` returns True because it needs no more. When this returns or raises, nothing that
    the program started is left.

    Output of processes that the program left running is read for a moment after its own exit. The
    program has an entry in the process registry, with ``owner`` as its name: if corral is killed,
    another corral process ends it. Raises ``CorralError`` if it cannot be started.
    """
    process = await Process.start(
        ProcessSpec(
            argv,
            cwd=cwd,
            env=workspace.child_env(),
            stdin=stdin,
            scratch=workspace.scratch,
            registry=ProcessRegistry(paths.process_registry(), owner),
            sandbox=workspace.sandbox,
        )
    )

    async def read_output() -> None:
        while chunk := await process.read():
            if on_output(chunk):
                return
            # If output is always available, ``read`` never waits, and no timeout would ever fire.
            await asyncio.sleep(0)

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await read_output()
    except TimeoutError:
        if not limit.expired():
            raise
        # What it writes after TERM is part of its output.
        async with asyncio.TaskGroup() as group:
            group.create_task(read_output())
            await process.end(GRACE)
    finally:
        exited = await process.end(GRACE)
    return Completed(exited, limit.expired(), process.stderr, process.stderr_is_cut)
