"""The files of running processes, for those who look: ``CORRAL_HOME/live/PID-START.json``.

A file is believed only if it belongs to this user and its process still runs: the process with
that pid must have the same start time. Files of processes that have died are removed here, with
their sockets. Files of another container are left alone: their pids mean nothing here.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import msgspec

from corral.live.records import VERSION, LiveProcess
from corral.system import fs, paths, platform
from corral.values import decode_as

LARGEST_FILE = 8 << 20
"""Bytes. A process with 1,000 runs writes about 300 kB."""


def folder() -> Path:
    """Where the files are."""
    return paths.home() / "live"


def file_of(process: LiveProcess) -> Path:
    """The file of a process."""
    start = "".join(c for c in process.start_time if c.isalnum())
    return folder() / f"{process.pid}-{start}.json"


def socket_of(file: Path) -> Path:
    """The socket of a process, if its path is short enough."""
    return file.with_suffix(".sock")


def processes() -> list[LiveProcess]:
    """The processes that run now and have something to show, the newest first."""
    found: list[LiveProcess] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for name in os.listdir(folder()):
            if name.endswith(".json") and not name.startswith("."):
                process = _read(folder() / name)
                if process is not None:
                    found.append(process)
    return sorted(found, key=lambda each: each.since, reverse=True)


def _read(file: Path) -> LiveProcess | None:
    data = fs.read_small(file, LARGEST_FILE) if _is_own(file) else None
    try:
        process = decode_as(data or b"", LiveProcess)
    except msgspec.MsgspecError:
        return None  # being removed, damaged, or of another version
    if process.version != VERSION:
        return None
    if process.boot == platform.boot_id():
        if process.pid_space != platform.pid_namespace():
            return None
        running = platform.get_process(process.pid)
        if running is not None and running.alive and running.start_time == process.start_time:
            return process
    # Remove what a dead process left.
    with contextlib.suppress(OSError):
        if process.socket is not None and Path(process.socket).name == socket_of(file).name:
            os.unlink(process.socket)
    with contextlib.suppress(OSError):
        file.unlink()
    return None


def _is_own(file: Path) -> bool:
    try:
        status = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
