"""Why a program could not be started, as corral's errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from corral import errors

_EXHAUSTED = {
    errno.EAGAIN: "too many processes: raise `ulimit -u` or run fewer at a time",
    errno.EMFILE: "too many open files: raise `ulimit -n` or run fewer at a time",
    errno.ENFILE: "the machine is out of file handles: run fewer at a time",
    errno.ENOMEM: "out of memory: run fewer at a time",
}


def spawn_error(
    error: OSError | ValueError, name: str, cwd: Path, program: str | None = None
) -> errors.CorralError:
    """Convert a failure to start into one of corral's errors."""
    if not isinstance(error, OSError):
        return errors.PromptError(f"cannot be passed to {name}: {error}", phase="spawn")
    number, reason = error.errno, error.strerror or str(error)
    if number in _EXHAUSTED:
        return errors.ProcessFailed(
            f"cannot start {name}: {reason}", hint=_EXHAUSTED[number], phase="spawn", retryable=True
        )
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return errors.StorageFailed(
            f"cannot start {name} in {cwd}: {reason}",
            hint="Free some disk space there and in CORRAL_HOME.",
            phase="spawn",
        )
    if number == errno.E2BIG:
        return errors.PromptError(
            f"the arguments to {name} are too long", hint="pass the text on stdin", phase="spawn"
        )
    if not cwd.is_dir() or not os.access(cwd, os.X_OK):
        return errors.ConfigError(
            f"the working directory {cwd} does not exist or cannot be entered", phase="spawn"
        )
    if program is None and number in (errno.ENOENT, errno.ENOTDIR):
        return errors.NotInstalled(
            f"{name} was not found", hint=f"install {name} or put it on PATH", phase="spawn"
        )
    return errors.BrokenInstall(
        f"{program or name} cannot be run: {reason}",
        hint="reinstall it; a script also needs the interpreter named in its first line",
        phase="spawn",
    )


def write_error(error: OSError, folder: Path) -> errors.CorralError:
    """Convert a failure to write a file before the start into one of corral's errors."""
    if error.errno in _EXHAUSTED:
        return spawn_error(error, "the program", folder)
    return errors.StorageFailed(
        f"cannot write in {folder}: {error.strerror or error}",
        hint="choose a folder that exists, is writable and has free space",
        phase="spawn",
    )
