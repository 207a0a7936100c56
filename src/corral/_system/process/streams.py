"""The standard streams of a child, without threads.

Input is a complete text that is given at the start, or a pipe that stays open. Output is read from
a pipe, or from a file that the child appends to. ``take()`` of a source returns bytes, ``b""`` at
the end, or None if there is nothing now. Nothing is read ahead. So a slow reader makes the child
wait (pipe) or leaves the bytes on the disk (file), and memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakMethod, WeakValueDictionary

from corral import errors
from corral._system import platform

if TYPE_CHECKING:
    from corral._system.cassette.format import Writer

CHUNK = 65_536
"""Bytes that are read at once. What a chunk becomes must fit into the processor's cache, and its
copies below the size that the allocator returns to the system: 256 KiB cost a tenth more."""
PIPE_SIZE = 1_048_576
"""A program that exits with unflushed output loses what does not fit into the pipe."""
BIG_PIPES = 32
"""All pipes of a user may hold 64 MiB; beyond that the kernel limits new ones, of any program, to
two pages. So only this many of our pipes are large at the same time."""
LONGEST_STDERR_LINE = 65_536
HOLE = 4 * 1_048_576
"""Parts of a file that were read are released to the disk in pieces of this size."""

_ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"


def read_input(stdin: bytes | Path | None) -> bytes:
    """All of the input that is given at the start."""
    return stdin.read_bytes() if isinstance(stdin, Path) else stdin or b""


def stdin_file(stdin: bytes | Path | None) -> int:
    """A descriptor from which the child reads all of the input, then the end. It is a file, so
    a child that does not read blocks nothing."""
    if stdin is None:
        return os.open(os.devnull, os.O_RDONLY)
    if isinstance(stdin, Path):
        try:
            return os.open(stdin, os.O_RDONLY)
        except OSError as error:
            reason = f"cannot read {stdin}: {error.strerror}"
            raise errors.PromptError(reason, phase="spawn") from error
    fd = platform.memory_file()
    try:
        rest = memoryview(stdin)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


class StdinPipe:
    """The writing end of a pipe. A child that stops reading is not an error: the rest is dropped,
    and the exit code of the child says why."""

    def __init__(self, loop: asyncio.AbstractEventLoop, recording: Writer | None = None) -> None:
        self._loop = loop
        self._recording = recording
        self.child_fd: int
        self.child_fd, self._fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._waiting = bytearray()
        self._closing = False
        self._drained: list[asyncio.Future[None]] = []

    def write(self, data: bytes) -> None:
        if self._fd < 0 or self._closing:
            return
        if self._recording is not None and data:
            self._recording.data("in", data)
        idle = not self._waiting
        self._waiting += data
        if idle:
            self._push()
            if self._waiting:
                self._loop.add_writer(self._fd, self._push)

    def _push(self) -> None:
        try:
            del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            return
        except OSError:  # the child has closed its stdin
            self.close()
        if not self._waiting:
            self._on_drained()

    def _on_drained(self) -> None:
        if self._fd >= 0 and not self._loop.is_closed():
            self._loop.remove_writer(self._fd)
        for drained in self._drained:
            if not drained.done():
                drained.set_result(None)
        self._drained.clear()
        if self._closing:
            self.close()

    async def drain(self) -> None:
        """Wait until the child has read everything, or has stopped reading."""
        if self._waiting:
            drained = self._loop.create_future()
            self._drained.append(drained)
            await drained

    def finish(self) -> None:
        """Close the pipe after what is queued has been written."""
        if self._recording is not None and self._fd >= 0 and not self._closing:
            self._recording.closed()
        self._closing = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        if self._fd < 0:
            return
        self._waiting.clear()
        self._closing = False
        self._on_drained()
        os.close(self._fd)
        self._fd = -1


class Pipe:
    """The reading end of a pipe. After ``arm``, ``wake`` is called when ``take`` may return more,
    until ``disarm``."""

    _big: ClassVar[int] = 0

    def __init__(self, loop: asyncio.AbstractEventLoop, *, big: bool = True) -> None:
        self._loop = loop
        self.child_fd: int
        self._fd, self.child_fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._grown = big and Pipe._big < BIG_PIPES and platform.grow_pipe(self._fd, PIPE_SIZE)
        Pipe._big += self._grown
        self._wake: Callable[[], object] | None = None
        self._listening = False

    def take(self) -> bytes | None:
        if self._fd < 0:
            return b""
        try:
            return os.read(self._fd, CHUNK)
        except BlockingIOError:
            return None

    def arm(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        if not self._listening:
            self._listening = True
            self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        # The reader stays registered between two waits, which saves two system calls each;
        # it is removed when something arrives and no reader waits.
        if self._wake is not None:
            self._wake()
        else:
            self._stop_reading()

    def disarm(self) -> None:
        self._wake = None

    def _stop_reading(self) -> None:
        if self._listening and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._listening = False

    def close(self) -> None:
        self._stop_reading()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            Pipe._big -= self._grown


class FollowedFile:
    """A file that the child appends to. ``take`` never returns ``b""``: the caller must know by
    other means when the writers have ended."""

    POLL: ClassVar[tuple[float, float]] = (0.002, 0.05)
    """Seconds between two reads if the kernel cannot report writes; the pause grows while nothing
    is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self._loop = loop
        self.child_fd: int
        self._fd, self.child_fd = platform.scratch_file(folder)
        self._offset = 0
        self._punched: int | None = 0
        self._notes = _WriteEvents.of(loop)
        self._watch = -1
        self._timer: asyncio.TimerHandle | None = None
        self._pause = FollowedFile.POLL[0]

    def take(self) -> bytes | None:
        if self._fd < 0:
            return b""
        data = os.read(self._fd, CHUNK)
        if not data:
            if os.fstat(self._fd).st_size < self._offset:
                # Truncated (`> /dev/stdout` does that): it is written from the start again.
                self._offset = os.lseek(self._fd, 0, os.SEEK_SET)
            return None
        self._offset += len(data)
        self._pause = FollowedFile.POLL[0]
        if self._punched is not None and self._offset - self._punched >= HOLE:
            done = platform.punch_hole(self._fd, self._punched, HOLE)
            self._punched = self._punched + HOLE if done else None
        return data

    def arm(self, wake: Callable[[], object]) -> None:
        self.disarm()
        if self._notes is not None:
            with contextlib.suppress(OSError):
                self._watch = self._notes.expect(self._fd, wake)
        if self._watch < 0:
            self._timer = self._loop.call_later(self._pause, wake)
            self._pause = min(self._pause * 1.5, FollowedFile.POLL[1])
        elif os.fstat(self._fd).st_size != self._offset:
            # Written to after the last take() and before the watch was active.
            self._loop.call_soon(wake)

    def disarm(self) -> None:
        if self._watch >= 0 and self._notes is not None:
            self._notes.forget(self._watch)
            self._watch = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        if self._fd < 0:
            return
        self.disarm()
        if self._notes is not None:
            self._notes.release()
        os.close(self._fd)
        self._fd = -1


class _WriteEvents:
    """Reports of writes from the kernel, for all followed files of one loop: a user has only a few
    hundred inotify instances."""

    # Weak: a loop that was closed in the middle must not hold what its files belong to.
    _open: ClassVar[WeakValueDictionary[asyncio.AbstractEventLoop, _WriteEvents]] = (
        WeakValueDictionary()
    )

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _WriteEvents | None:
        """The shared object of a loop, to be released once; None if the kernel has no more."""
        notes = cls._open.get(loop)
        if notes is None:
            try:
                notes = cls._open[loop] = cls(loop)
            except OSError:
                return None
        notes._users += 1
        return notes

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._users = 0
        self._expected: dict[int, Callable[[], object]] = {}
        self._fd = platform.inotify_open()
        loop.add_reader(self._fd, self._readable)

    def expect(self, fd: int, wake: Callable[[], object]) -> int:
        path = f"/proc/self/fd/{fd}"
        watch = platform.inotify_add(self._fd, path, platform.WRITTEN_ONCE)
        self._expected[watch] = wake
        return watch

    def forget(self, watch: int) -> None:
        # The watch ends with the next write, or is used again by expect().
        self._expected.pop(watch, None)

    def _readable(self) -> None:
        for watch, _, _ in platform.inotify_events(self._fd):
            # -1: events were lost, so every file must be checked.
            for number in list(self._expected) if watch == -1 else [watch]:
                if wake := self._expected.pop(number, None):
                    wake()

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            _WriteEvents._open.pop(self._loop, None)


class Stderr:
    """Reads stderr continuously, whether or not stdout is read. Keeps the last bytes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: Pipe,
        keep: int,
        callback: Callable[[bytes], None] | None,
        recording: Writer | None,
    ) -> None:
        self._loop = loop
        self._source = source
        self._keep = keep
        self._callback = callback
        self._recording = recording
        self._tail = b""
        self._cut = False
        source.arm(self._take)

    @property
    def text(self) -> str:
        text = self._tail[-self._keep :].decode(errors="replace")
        return re.sub(_ANSI, "", text) if "\x1b" in text else text

    @property
    def is_cut(self) -> bool:
        """Whether there was more text before."""
        return self._cut or len(self._tail) > self._keep

    def _take(self) -> bool:
        data = self._source.take()
        if data == b"":
            self._source.close()
            return False
        self._source.arm(self._take)
        if data is None:
            return False
        self._tail += data
        if len(self._tail) > 2 * self._keep:
            self._tail = self._tail[-self._keep :]
            self._cut = True
        if self._recording is not None:
            self._recording.data("err", data)
        if self._callback is not None:
            try:
                self._callback(data)
            except Exception as error:
                # An error of the callback must not stop the reading.
                failure = {"message": "a listener to stderr failed", "exception": error}
                self._loop.call_exception_handler(failure)
        return True

    def drain(self) -> None:
        """Read what is available now; bounded, because a grandchild may write without end."""
        for _ in range(64):
            if not self._take():
                break

    def close(self) -> None:
        self._source.close()


class StderrLines:
    """Splits stderr into lines. Its callback is held weakly, because the event loop holds this
    object."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        """``on_line`` is a bound method."""
        self._on_line = WeakMethod(on_line)
        self._partial_line = b""

    def end(self) -> None:
        """Process a last line without a newline."""
        if self._partial_line:
            self.feed(b"\n")

    def feed(self, chunk: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        self._partial_line = self._partial_line[-LONGEST_STDERR_LINE:]
        on_line = self._on_line()
        if on_line is not None:
            for line in lines:
                on_line(line.decode("utf-8", "replace"))
