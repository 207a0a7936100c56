"""Standard input and output of this process, as the connection with the program that started it.

Theory of operation
-------------------
A server that another program starts (``corral mcp``, ``corral acp``) speaks on its standard input
and output. Nothing else may: a line that some library prints, or a child that reads standard input,
would break the protocol. So ``claimed`` takes both away: the connection has descriptors of its own,
what is printed goes to standard error, and who reads standard input gets its end at once.

Both descriptors stay blocking, because the other program may share them. A read follows the
selector, so it returns what is there. A write follows it too, and is never longer than what fits
into a pipe or socket that is ready: the event loop never waits for a client that does not read.
``write`` stores what does not fit yet. A client that reads nothing while the server writes must not
fill the memory: ``is_full`` says when to stop reading from it.

The end: ``read`` returns ``b""`` when the client closes its side, and for ever after. A client that
has closed the other side gets nothing any more; that is no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from collections.abc import Generator

CHUNK = 65_536
"""Bytes that are read at once."""
PIECE = 4096
"""Bytes that fit into a pipe or socket that is ready to be written."""
FULL = 64 * 1024 * 1024
"""Bytes that wait to be written before ``is_full``."""


class StandardStreams:
    """The connection. Use it in one event loop; only one task reads."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._waiting = bytearray()
        self._is_broken = False
        self._watches = False
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def is_full(self) -> bool:
        """Whether too much waits to be written."""
        return len(self._waiting) > FULL

    async def read(self) -> bytes:
        """The next bytes; ``b""`` at the end."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._read_fd, ready.set)
        except PermissionError:  # a file is always ready
            return self._read_now()
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._read_fd)
        return self._read_now()

    def _read_now(self) -> bytes:
        try:
            return os.read(self._read_fd, CHUNK)
        except OSError:
            return b""

    def write(self, data: bytes) -> None:
        """Send the bytes, after those that wait already. Never blocks."""
        if self._is_broken:
            return
        self._waiting += data
        if not self._watches:
            self._push()

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until everything is sent, at most this long; None: as long as it takes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._drained.wait()

    def _push(self) -> None:
        """Send what fits now, and have this called again when more does."""
        try:
            while self._waiting and self._is_ready():
                del self._waiting[: os.write(self._write_fd, self._waiting[:PIECE])]
        except OSError:  # the client has gone
            self._is_broken = True
            self._waiting.clear()
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._drained.set()
            if self._watches:
                loop.remove_writer(self._write_fd)
                self._watches = False
        elif not self._watches:
            self._drained.clear()
            loop.add_writer(self._write_fd, self._push)
            self._watches = True

    def _is_ready(self) -> bool:
        poll = select.poll()
        poll.register(self._write_fd, select.POLLOUT)
        return bool(poll.poll(0))

    def stop(self) -> None:
        """Send nothing more."""
        if self._watches:
            asyncio.get_running_loop().remove_writer(self._write_fd)
            self._watches = False
        self._is_broken = True
        self._waiting.clear()
        self._drained.set()


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()


@contextlib.contextmanager
def claimed() -> Generator[StandardStreams]:
    """The connection, while the block is open: everything else that prints writes to standard
    error, and reads nothing. Needs a running event loop."""
    _flush()
    kept = [os.dup(0), os.dup(1)]
    streams = StandardStreams(*kept)
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        yield streams
    finally:
        streams.stop()
        _flush()  # what was printed meanwhile goes to standard error
        os.dup2(kept[0], 0)
        os.dup2(kept[1], 1)
        for fd in kept:
            os.close(fd)
