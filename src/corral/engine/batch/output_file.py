"""The file of a batch's results: one line per result, on disk before the result counts.

A killed process leaves at most an incomplete last line, which the next one removes. A complete line
is never written twice, and a result without a line never counts as done. While the file is open,
no other process can write to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from corral.engine.batch.results import BatchResult, line_of
from corral.errors import ConfigError, StorageFailed
from corral.system import fs, paths
from corral.values import decode_as


class OutputFile:
    """Opened when it is created. Raises ``ConfigError`` if it cannot be written, contains other
    data, or another process writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"the results cannot be written to {path}: {error.strerror}",
                hint="Choose another file with --output.",
            ) from error
        self._fds = [fd]
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"the results cannot be written to {path}: it is not a file")
            paths.announce(path)
            self._lock(fd)
            if not os.path.samestat(os.fstat(fd), os.stat(path)):
                raise ConfigError(f"another process has just written {path}", hint="Try again.")
            self.known = self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _lock(self, fd: int) -> None:
        if not fs.try_lock(fd):
            raise ConfigError(
                f"another process is writing to {self.path}",
                hint="It runs this batch: wait for it, or stop it.",
            ) from None

    def _read(self) -> dict[str, BatchResult]:
        """The results in the file by task id; an incomplete last line is removed."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from error
        end = data.rfind(b"\n") + 1
        known: dict[str, BatchResult] = {}
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                result = decode_as(line, BatchResult)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{self.path} line {number} is not a batch result: {error}",
                    hint="Choose another file with --output; this one is not changed.",
                ) from error
            known[result.id] = result
        if end < len(data):
            if not end and not _begins_a_line(data):
                raise ConfigError(
                    f"{self.path} does not contain batch results",
                    hint="Choose another file with --output; this one is not changed.",
                )
            os.ftruncate(self._fds[-1], end)
            os.fsync(self._fds[-1])
        return known

    def write(self, results: Iterable[BatchResult]) -> None:
        """Append results; they are on disk when it returns. Raises ``StorageFailed`` and leaves the
        file unchanged."""
        data = b"".join(line_of(each) for each in results)
        if not data:
            return
        fd = self._fds[-1]
        size = os.fstat(fd).st_size
        try:
            fs.write_all(fd, data)
            os.fsync(fd)
        except OSError as error:
            os.ftruncate(fd, size)
            raise StorageFailed(
                f"the results cannot be written to {self.path}: {error.strerror}",
                hint="Free some disk space and run the same command again; results are kept.",
            ) from error

    def replace(self, results: Mapping[str, BatchResult]) -> None:
        """Replace all lines atomically, in this order. Raises ``StorageFailed``."""
        fd, draft = None, None
        try:
            fd, draft = fs.create_draft(self.path, mode=0o666)
            os.fchmod(fd, os.fstat(self._fds[-1]).st_mode & 0o7777)
            # Locked before it is renamed: the next process that opens it finds it locked.
            self._lock(fd)
            for each in results.values():
                fs.write_all(fd, line_of(each))
            os.fsync(fd)
            fs.move_into_place(draft, self.path, sync=True)
        except OSError as error:
            if fd is not None:
                os.close(fd)
            if draft is not None:
                Path(draft).unlink(missing_ok=True)
            raise StorageFailed(
                f"the results cannot be written to {self.path}: {error.strerror}"
            ) from error
        self._fds.append(fd)


def _begins_a_line(data: bytes) -> bool:
    head = b'{"id":"'
    return data.startswith(head) or head.startswith(data)
