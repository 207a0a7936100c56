"""A program run to its end, of which nothing survives.

The promises: everything it started ends with ``end()``, whatever sessions, forks and
signal handlers it made for itself. ``end()`` is bounded and runs through when its
caller is cancelled. A ``Process`` that is dropped is killed with all it started.
Nothing here has a thread or a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from corral.system.process import platform, spawn
from corral.system.process.child import Child, Exit
from corral.system.process.registry import ProcessRegistry
from corral.system.process.stdin import Feed, stdin_file
from corral.system.process.stdout import Pipe, Stderr, Tail
from corral.system.process.tree import Tree

__all__ = ["Exit", "Process"]

MARK = "CORRAL_RUN_MARK"
"""In the environment of everything a run starts. A run inside a run appends its own."""


class Process:
    """One program and all it starts. Belongs to the loop it was started in."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.pid = child.tree.root
        # The loop holds the child, never this: so this can be dropped, and is noticed.
        weakref.finalize(self, child.kill_now)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: str | Path,
        env: Mapping[str, str],
        stdin: bytes | Path | None = None,
        keep_stdin_open: bool = False,
        stdout: Literal["pipe", "file"] = "pipe",
        scratch: Path | None = None,
        ledger: ProcessRegistry | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        stderr_tail: int = 16_384,
    ) -> Process:
        """Start ``argv`` with ``env`` (and our mark), in a session of its own.

        ``stdin`` is delivered whole, then the end; ``keep_stdin_open`` leaves it open
        for ``write()``. ``stdout="file"`` is for programs that exit with unflushed
        output: nothing of it is lost, and the file in ``scratch`` has no name that could
        stay behind. ``on_stderr`` must not hold the Process: the loop holds it.

        Raises NotInstalled, BrokenInstall, ConfigError, PromptError, ProcessFailed or
        StorageFailed, all in the phase ``spawn``; then nothing was started.
        """
        loop = asyncio.get_running_loop()
        cwd = Path(cwd)
        files = scratch or _temporary()
        mark = os.urandom(16).hex()
        outer = os.environ.get(MARK)
        env = {**env, MARK: f"{outer}.{mark}" if outer else mark}
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as lent:
            # What is lent is the child's end of each pipe, closed here once it has them.
            try:
                feed = Feed(loop) if keep_stdin_open else None
                stdin_fd = feed.child_fd if feed else stdin_file(stdin)
                lent.callback(os.close, stdin_fd)
                if feed:
                    undo.callback(feed.close)
                    feed.write_whole(stdin)
                out = Tail(loop, files) if stdout == "file" or platform.WINDOWS else Pipe(loop)
                undo.callback(out.close)
                lent.callback(os.close, out.child_fd)
                err = Tail(loop, files) if platform.WINDOWS else Pipe(loop, big=False)
                undo.callback(err.close)
                lent.callback(os.close, err.child_fd)
            except OSError as error:
                raise spawn.unwritable(error, files) from error
            platform.adopt_orphans(mark)
            undo.callback(platform.release_orphans, mark)
            number = platform.new_stamp()
            try:
                if ledger is not None:
                    undo.callback(ledger.remove, mark)
                    ledger.announce(mark, number, argv[0])
            except OSError as error:
                raise spawn.unwritable(error, ledger.folder if ledger else files) from error
            popen = spawn.spawn(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin_fd,
                stdout=out.child_fd,
                stderr=err.child_fd,
                number=number,
            )
            tree = Tree(popen.pid, mark, number)
            undo.callback(tree.reap)
            undo.callback(tree.kill)
            try:
                if ledger is not None:
                    ledger.add(tree, argv[0])
                heard = Stderr(loop, err, stderr_tail, on_stderr)
                child = Child(
                    loop, popen=popen, tree=tree, feed=feed, out=out, err=heard, ledger=ledger
                )
            except OSError as error:
                raise spawn.unwritable(error, ledger.folder if ledger else files) from error
            undo.pop_all()
        return cls(child)

    async def read(self) -> bytes:
        """The next chunk of stdout, as soon as any is there. ``b""`` at the very end: the
        program has exited and all it wrote has been handed out, or ``end()`` was called.
        """
        while (chunk := await self._child.read()) is None:
            pass
        return chunk

    async def listen(self) -> bytes | None:
        """``read()`` that ``nudge()`` can interrupt: then None."""
        return await self._child.read()

    def read_now(self) -> bytes:
        """What it has written so far and nobody has read; empty where there is nothing."""
        return self._child.out.take() or b""

    def nudge(self) -> None:
        """Make a ``listen()`` under way, or the next that would wait, return None."""
        self._child.nudge()

    def write(self, data: bytes) -> None:
        """Queue for stdin. Never raises: a program that stopped reading has its reasons."""
        if self._child.feed is not None:
            self._child.feed.write(data)

    async def drain(self) -> None:
        """Until the program has taken all that was written, or takes no more."""
        if self._child.feed is not None:
            await self._child.feed.drain()

    def close_stdin(self) -> None:
        """The end of the input, after what is still queued."""
        if self._child.feed is not None:
            self._child.feed.finish()

    async def wait(self) -> Exit:
        """Until the program has exited; what it started may still run, until ``end()``."""
        return await asyncio.shield(self._child.exited)

    @property
    def exit(self) -> Exit | None:
        return self._child.exit

    @property
    def stderr(self) -> str:
        """The last of what it wrote there, without colours. Whole once it has exited."""
        return self._child.err.text

    @property
    def stderr_is_cut(self) -> bool:
        """Whether it wrote more there, before ``stderr`` begins. The cut may have gone through a
        secret: redact with ``Eraser.clean_text_part``."""
        return self._child.err.is_cut

    async def end(self, grace: float = 5.0) -> Exit:
        """End the program and everything it started: TERM, ``grace`` seconds, KILL.

        When this returns or raises, nothing of it is left, also if it had exited by
        itself. Cancellation is passed on, but only then. Can be called again, also while
        it is under way: the shortest grace holds. Takes ``grace`` and 3 s at most, and
        what a busy loop adds to its own pauses.
        """
        return await self._child.end(grace)

    def kill_now(self) -> None:
        """KILL everything at once, without a loop: for finalizers. Blocks for a moment."""
        self._child.kill_now()


def _temporary() -> Path:
    import tempfile  # a caller with a folder of its own need not load this

    return Path(tempfile.gettempdir())
