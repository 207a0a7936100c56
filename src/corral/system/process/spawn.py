"""Start a program. A failure to start becomes one of corral's errors."""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from corral import errors
from corral.system import platform, version_cache

_EXHAUSTED = {
    errno.EAGAIN: "too many processes: raise `ulimit -u` or run fewer at a time",
    errno.EMFILE: "too many open files: raise `ulimit -n` or run fewer at a time",
    errno.ENFILE: "the machine is out of file handles: run fewer at a time",
    errno.ENOMEM: "out of memory: run fewer at a time",
}

_LOSE_LIMITS_RIGHT = ("--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource")
"""Options of setpriv. Without this capability no process, not even one of root, can raise a hard
limit again. So no descendant can remove the stamp, which is a hard limit."""


def spawn(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    number: int | None,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in its own session, with the stamp ``number`` set before it runs. Where the
    kernel supports that, it is killed when we die."""
    program = find_program(argv[0], cwd, env)
    try:
        launcher = _launcher(number) if program and _is_runnable(program) else []
        popen = subprocess.Popen(
            [*launcher, *argv],
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            close_fds=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    except (OSError, ValueError) as error:
        raise spawn_error(error, argv[0], cwd, program) from error
    if platform.LINUX:
        # Otherwise subprocess would warn about a child that is not reaped yet, and reap it itself.
        popen.returncode = 0
    return popen


def _launcher(number: int | None) -> list[str]:
    """The command that is put before ``argv``. Each part sets one thing and then executes the next,
    so the program never runs without it. An error of exec would look like the program's own exit:
    so this is used only for programs that will run."""
    parts: list[str] = []
    if number is not None and _works("prlimit", f"--rttime={1 << 60}"):
        parts += ["prlimit", f"--rttime={number}:{number}", "--"]
    options: list[str] = []
    if parts and platform.can_drop_limits_right() and _works("setpriv", *_LOSE_LIMITS_RIGHT):
        options += _LOSE_LIMITS_RIGHT
    # The kernel binds the child to the thread that started it, and only the first
    # thread lives as long as the process.
    of_first_thread = threading.current_thread() is threading.main_thread()
    if of_first_thread and _works("setpriv", "--pdeathsig", "KILL"):
        options += ["--pdeathsig", "KILL"]
    if options:
        parts += ["setpriv", *options, "--"]
    return [_tool(part) or part for part in parts]


@functools.cache
def _tool(name: str) -> str | None:
    import shutil

    return shutil.which(name) if platform.LINUX and not name.startswith("-") else None


@functools.cache
def _works(name: str, *options: str) -> bool:
    """Whether the tool exists and supports the options; busybox and old versions do not."""
    tool = _tool(name)
    if tool is None:
        return False
    key = version_cache.cache_key(tool, *options)
    known = version_cache.get("launchers", key)
    if known is None:
        probe = subprocess.run([tool, *options, "--", "true"], capture_output=True, check=False)
        known = "works" if probe.returncode == 0 else "fails"
        version_cache.put("launchers", key, known)
    return known == "works"


def find_program(name: str, cwd: Path, env: Mapping[str, str]) -> str | None:
    """The file that would be run for ``name`` in ``cwd``, whether or not it is executable."""
    places = [""] if os.path.dirname(name) else os.get_exec_path(env)
    found = [path for place in places if os.path.isfile(path := os.path.join(cwd, place, name))]
    return next((path for path in found if os.access(path, os.X_OK)), found[0] if found else None)


def _is_runnable(program: str) -> bool:
    """Whether the kernel can run this: a binary of this machine, or a script for one."""
    seen = os.stat(program)
    return _has_runnable_head(program, seen.st_ino, seen.st_mtime_ns, seen.st_mode)


@functools.lru_cache(maxsize=64)
def _has_runnable_head(program: str, *_stat: int) -> bool:
    head = _head(program) if os.access(program, os.X_OK) else b""
    if head.startswith(b"#!"):
        interpreter = os.fsdecode(head[2:].split(b"\n")[0].strip()).split()
        program = interpreter[0] if interpreter else ""
        head = _head(program) if os.access(program, os.X_OK) else b""
    # Class, byte order and machine must be those of the running interpreter.
    ours = _head(sys.executable)
    return head.startswith(b"\x7fELF") and (head[4:6], head[18:20]) == (ours[4:6], ours[18:20])


def _head(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(256)


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
