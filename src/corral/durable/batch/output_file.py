"""The file of a batch's results: a line each, on the disk before it is counted.

Whoever is killed leaves half a line at the most, which the next one cuts off; a line that is
there is never written again, one that is not yet is never taken for done. While it is open
nobody else can write to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from corral.durable.batch.results import BatchResult, line_of
from corral.errors import ConfigError, StorageFailed
from corral.system import file_lock, fs


class Output:
    """Opened when it is made. Raises ``ConfigError`` where it cannot be written, holds something
    else, or is written to by another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"the results cannot be written to {path}: {error.strerror}",
                hint="Name another file with --output.",
            ) from error
        self._fds = [fd]
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"the results cannot be written to {path}: it is no file")
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
        if not file_lock.try_lock(fd):
            raise ConfigError(
                f"another process is writing to {self.path}",
                hint="It runs this batch: wait for it, or stop it.",
            )

    def _read(self) -> dict[str, BatchResult]:
        """What is there, by task; half a line at its end is cut off."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from error
        whole = data.rfind(b"\n") + 1
        known: dict[str, BatchResult] = {}
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                result = msgspec.json.decode(line, type=BatchResult)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{self.path} line {number} is no result of a batch: {error}",
                    hint="Name another file with --output; this one is left as it is.",
                ) from error
            known[result.id] = result
        if whole < len(data):
            if not whole and not _begins_a_line(data):
                raise ConfigError(
                    f"{self.path} holds something else than results",
                    hint="Name another file with --output; this one is left as it is.",
                )
            os.ftruncate(self._fds[-1], whole)
            os.fsync(self._fds[-1])
        return known

    def write(self, results: Iterable[BatchResult]) -> None:
        """On the disk when it returns. Raises ``StorageFailed``; then the file is as before."""
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
                hint="Make room, and give the same command again: what is done is kept.",
            ) from error

    def replace(self, results: Mapping[str, BatchResult]) -> None:
        """All its lines anew, in this order, or none of them. Raises ``StorageFailed``."""
        fd, draft = None, None
        try:
            fd, draft = fs.create_draft(self.path, mode=0o666)
            os.fchmod(fd, os.fstat(self._fds[-1]).st_mode & 0o7777)
            # Locked before it has its name: whoever opens that next finds it taken.
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
