"""The standard input of a child: a complete text given at the start, or a pipe that stays open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from corral import errors
from corral.system import descriptors


def stdin_file(stdin: bytes | Path | None) -> int:
    """A descriptor from which the child reads all of the input, then the end. It is a file, so a
    child that does not read blocks nobody."""
    if stdin is None:
        return os.open(os.devnull, os.O_RDONLY)
    if isinstance(stdin, Path):
        try:
            return os.open(stdin, os.O_RDONLY)
        except OSError as error:
            reason = f"cannot read {stdin}: {error.strerror}"
            raise errors.PromptError(reason, phase="spawn") from error
    fd = descriptors.memory_file()
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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.child_fd, self._fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._waiting = bytearray()
        self._closing = False
        self._drained: list[asyncio.Future[None]] = []

    def write_initial(self, stdin: bytes | Path | None) -> None:
        """Queue what the child reads first."""
        self.write(stdin.read_bytes() if isinstance(stdin, Path) else stdin or b"")

    def write(self, data: bytes) -> None:
        if self._fd < 0 or self._closing:
            return
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
        except OSError:  # nobody reads any more
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
