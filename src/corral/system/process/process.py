"""Run a program, and end it together with everything it started.

Theory of operation
-------------------
``Process`` is the public handle. It has no thread and no task. The event loop in which it was
started holds a ``Child`` (callbacks for the exit, stdout, stderr and stdin), and the ``Child``
holds a ``ProcessTree``. The loop never holds the ``Process``: if the caller drops it, a finalizer
kills the run.

States:

1. starting: ``start`` creates the pipes, writes a registry entry that has the mark only, starts
   the program with the mark and the stamp, and completes the registry entry with the pid. Every
   step is undone if a later one fails.
2. running: ``read`` returns output as soon as there is any. ``write`` queues input.
3. exited: the program has exited and ``exit`` is set. What it started may still run, and may still
   write to its stdout. That output is read until nothing came for a moment, then ``read`` returns
   the end.
4. ended: ``end`` or ``kill_now`` has returned. Nothing of the run is left, the descriptors are
   closed and the registry entry is removed.

Who calls: one task reads stdout at a time. ``write``, ``interrupt_read``, ``wait`` and ``end`` may
be called from any task of the same loop, ``kill_now`` from any thread.

Guaranteed:

- Everything that the program started ends with ``end``, whatever sessions, forks and signal
  handlers it made.
- ``end`` takes at most ``grace`` and 3 seconds. It finishes when its caller is cancelled, and
  passes the cancellation on afterwards. It may be called several times, also at the same time:
  the shortest grace applies.
- No output is lost that was written before the end, within the limits of the chosen ``stdout``.
- A program that stops reading its input never blocks or fails the caller.
- Memory is bounded: nothing is read ahead.

Crashes: if corral is killed, the kernel kills the program where it can. The registry entry stays,
and the next corral process ends what is left (``ProcessRegistry.reap``). The entry is written
before the program starts, so there is no moment at which a started program is not registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from corral.system.process import platform, spawn
from corral.system.process.child import Child, Exit
from corral.system.process.registry import ProcessRegistry
from corral.system.process.stdin import StdinPipe, stdin_file
from corral.system.process.stdout import FollowedFile, Pipe, Stderr
from corral.system.process.tree import ProcessTree

__all__ = ["Exit", "Process"]

MARK = "CORRAL_RUN_MARK"
"""In the environment of everything a run starts. A run inside a run appends its own."""


class Process:
    """A program and everything it starts. It belongs to the loop in which it was started."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.pid = child.tree.root
        # The loop holds the child, never this object: so dropping it is noticed.
        weakref.finalize(self, child.kill_now)

    @classmethod
    async def start(  # noqa: PLR0913
        cls,
        argv: Sequence[str],
        *,
        cwd: str | Path,
        env: Mapping[str, str],
        stdin: bytes | Path | None = None,
        keep_stdin_open: bool = False,
        stdout: Literal["pipe", "file"] = "pipe",
        scratch: Path | None = None,
        registry: ProcessRegistry | None = None,
        on_stderr: Callable[[bytes], None] | None = None,
        stderr_tail: int = 16_384,
    ) -> Process:
        """Start ``argv`` with ``env`` and the run's mark, in its own session.

        ``stdin`` is written completely, then closed; with ``keep_stdin_open`` it stays open for
        ``write()``. ``stdout="file"`` is for programs that exit with unflushed output: nothing of
        it is lost, and the file in ``scratch`` has no name, so it cannot be left behind. The
        ``registry`` gets an entry while the process runs. ``on_stderr`` is called with what the
        program writes to stderr. It must not reference the Process, because the loop holds it.
        ``stderr_tail`` is how many bytes of stderr are kept.

        Raises NotInstalled, BrokenInstall, ConfigError, PromptError, ProcessFailed or
        StorageFailed, all in the phase ``spawn``; then nothing was started.
        """
        loop = asyncio.get_running_loop()
        files = scratch or _temporary()
        mark = os.urandom(16).hex()
        outer = os.environ.get(MARK)
        env = {**env, MARK: f"{outer}.{mark}" if outer else mark}
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as child_ends:
            with _writing(files):
                feed, stdin_fd = _open_stdin(loop, stdin, keep_stdin_open, undo, child_ends)
                is_file = stdout == "file" or platform.WINDOWS
                out = FollowedFile(loop, files) if is_file else Pipe(loop)
                undo.callback(out.close)
                child_ends.callback(os.close, out.child_fd)
                err = FollowedFile(loop, files) if platform.WINDOWS else Pipe(loop, big=False)
                undo.callback(err.close)
                child_ends.callback(os.close, err.child_fd)
            platform.adopt_orphans(mark)
            undo.callback(platform.release_orphans, mark)
            number = platform.new_stamp()
            with _writing(registry.folder if registry else files):
                if registry is not None:
                    undo.callback(registry.remove, mark)
                    registry.announce(mark, number, argv[0])
            popen = spawn.spawn(
                argv,
                cwd=Path(cwd),
                env=env,
                stdin=stdin_fd,
                stdout=out.child_fd,
                stderr=err.child_fd,
                number=number,
            )
            tree = ProcessTree(popen.pid, mark, number)
            undo.callback(tree.reap)
            undo.callback(tree.kill)
            with _writing(registry.folder if registry else files):
                if registry is not None:
                    registry.add(tree, argv[0])
                tail = Stderr(loop, err, stderr_tail, on_stderr)
                child = Child(
                    loop, popen=popen, tree=tree, feed=feed, out=out, err=tail, registry=registry
                )
            undo.pop_all()
        return cls(child)

    async def read(self) -> bytes:
        """Return the next chunk of stdout as soon as there is one. ``b""`` at the end: the program
        has exited and all its output was returned, or ``end()`` was called."""
        while (chunk := await self._child.read()) is None:
            pass
        return chunk

    async def read_interruptible(self) -> bytes | None:
        """Like ``read``, but return None if ``interrupt_read`` is called."""
        return await self._child.read()

    def read_now(self) -> bytes:
        """Return the output that is available and was not read; empty if there is none."""
        return self._child.out.take() or b""

    def interrupt_read(self) -> None:
        """Make ``read_interruptible`` return None: the running call, or the next one that waits."""
        self._child.interrupt_read()

    def write(self, data: bytes) -> None:
        """Queue data for stdin. Never raises: a program may stop reading."""
        if self._child.feed is not None:
            self._child.feed.write(data)

    async def drain(self) -> None:
        """Wait until the program has read all that was written, or has stopped reading."""
        if self._child.feed is not None:
            await self._child.feed.drain()

    def close_stdin(self) -> None:
        """Close stdin after what is queued has been written."""
        if self._child.feed is not None:
            self._child.feed.finish()

    async def wait(self) -> Exit:
        """Wait until the program has exited. What it started may run until ``end()``."""
        return await asyncio.shield(self._child.exited)

    @property
    def exit(self) -> Exit | None:
        return self._child.exit

    @property
    def stderr(self) -> str:
        """The last part of what it wrote to stderr, without colors. Complete after its exit."""
        return self._child.err.text

    @property
    def stderr_is_cut(self) -> bool:
        """Whether it wrote more to stderr before the text in ``stderr``. The cut may have split a
        secret: redact with ``SecretRedactor.clean_text_part``."""
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
        """Send KILL to everything, without a loop: for finalizers. Blocks for a moment."""
        self._child.kill_now()


def _temporary() -> Path:
    import tempfile  # not needed if the caller gives a folder

    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def _writing(folder: Path) -> Generator[None]:
    """Convert ``OSError`` while something is written to this folder before the start."""
    try:
        yield
    except OSError as error:
        raise spawn.write_error(error, folder) from error


def _open_stdin(
    loop: asyncio.AbstractEventLoop,
    stdin: bytes | Path | None,
    keep_open: bool,
    undo: contextlib.ExitStack,
    child_ends: contextlib.ExitStack,
) -> tuple[StdinPipe | None, int]:
    """The pipe to write to, if it stays open, and the child's descriptor, which is closed here
    when the child has it."""
    if not keep_open:
        fd = stdin_file(stdin)
        child_ends.callback(os.close, fd)
        return None, fd
    feed = StdinPipe(loop)
    child_ends.callback(os.close, feed.child_fd)
    undo.callback(feed.close)
    feed.write_initial(stdin)
    return feed, feed.child_fd
