"""Starting a program, and saying in our own errors why that did not go."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from corral import errors
from corral.system import version_cache
from corral.system.process import platform

_EXHAUSTED = {
    errno.EAGAIN: "too many processes: raise `ulimit -u` or run fewer at a time",
    errno.EMFILE: "too many open files: raise `ulimit -n` or run fewer at a time",
    errno.ENFILE: "the machine is out of file handles: run fewer at a time",
    errno.ENOMEM: "out of memory: run fewer at a time",
}

_LOSE_LIMITS_RIGHT = ("--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource")
"""Options of setpriv. Without this capability nobody, root included, raises a hard limit again:
so no descendant removes the stamp, which is one."""


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
    """Start ``argv`` in a session of its own, stamped with ``number`` before it runs. Where
    the kernel can, it dies with us."""
    program = find(argv[0], cwd, env)
    try:
        launcher = _launcher(number) if program and _surely_runs(program) else []
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
        raise explain(error, argv[0], cwd, program) from error
    if platform.LINUX:
        # Else it would warn of a child that is still to be reaped, and reap it itself.
        popen.returncode = 0
    return popen


def _launcher(number: int | None) -> list[str]:
    """What to put before a command. Each part sets one thing and becomes the next, so a
    program is never without it, however early it forks. A failing exec could no longer
    be told from the program's own exit: it is for programs that will surely run."""
    parts: list[str] = []
    if number is not None and _works("prlimit", f"--rttime={1 << 60}"):
        parts += ["prlimit", f"--rttime={number}:{number}", "--"]
    options: list[str] = []
    if parts and platform.may_drop_limits_right() and _works("setpriv", *_LOSE_LIMITS_RIGHT):
        options += _LOSE_LIMITS_RIGHT
    # The kernel ties the child to the thread that spawned it, and only the first
    # thread lives as long as the process.
    of_first_thread = threading.current_thread() is threading.main_thread()
    if of_first_thread and _works("setpriv", "--pdeathsig", "KILL"):
        options += ["--pdeathsig", "KILL"]
    if options:
        parts += ["setpriv", *options, "--"]
    return [_tool(part) or part for part in parts]


@functools.cache
def _tool(name: str) -> str | None:
    return shutil.which(name) if platform.LINUX and not name.startswith("-") else None


@functools.cache
def _works(name: str, *options: str) -> bool:
    """Whether it is there and knows the options: that of busybox, and old ones, do not."""
    tool = _tool(name)
    if tool is None:
        return False
    key = version_cache.key_of(tool, *options)
    known = version_cache.recall("launchers", key)
    if known is None:
        probe = subprocess.run([tool, *options, "--", "true"], capture_output=True, check=False)
        known = "works" if probe.returncode == 0 else "fails"
        version_cache.keep("launchers", key, known)
    return known == "works"


def find(name: str, cwd: Path, env: Mapping[str, str]) -> str | None:
    """The file that running ``name`` in ``cwd`` would run, whether or not it can."""
    places = [""] if os.path.dirname(name) else os.get_exec_path(env)
    found = [path for place in places if os.path.isfile(path := os.path.join(cwd, place, name))]
    return next((path for path in found if os.access(path, os.X_OK)), found[0] if found else None)


def _surely_runs(program: str) -> bool:
    """Whether the kernel will run this: a binary such as our own, or a script for one."""
    seen = os.stat(program)
    return _has_runnable_head(program, seen.st_ino, seen.st_mtime_ns, seen.st_mode)


@functools.lru_cache(maxsize=64)
def _has_runnable_head(program: str, *_stat: int) -> bool:
    head = _head(program) if os.access(program, os.X_OK) else b""
    if head.startswith(b"#!"):
        interpreter = os.fsdecode(head[2:].split(b"\n")[0].strip()).split()
        program = interpreter[0] if interpreter else ""
        head = _head(program) if os.access(program, os.X_OK) else b""
    # Class, byte order and machine, as in the running interpreter.
    ours = _head(sys.executable)
    return head.startswith(b"\x7fELF") and (head[4:6], head[18:20]) == (ours[4:6], ours[18:20])


def _head(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(256)


def explain(
    error: OSError | ValueError, name: str, cwd: Path, program: str | None = None
) -> errors.CorralError:
    """What went wrong, as one of our errors."""
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
        return errors.ConfigError(f"cannot work in {cwd}: no such folder", phase="spawn")
    if program is None and number in (errno.ENOENT, errno.ENOTDIR):
        return errors.NotInstalled(
            f"{name} was not found", hint=f"install {name} or put it on PATH", phase="spawn"
        )
    return errors.BrokenInstall(
        f"{program or name} cannot be run: {reason}",
        hint="reinstall it; a script also needs the interpreter named in its first line",
        phase="spawn",
    )


def unwritable(error: OSError, folder: Path) -> errors.CorralError:
    """Why something could not be written down before the start."""
    if error.errno in _EXHAUSTED:
        return explain(error, "the program", folder)
    return errors.StorageFailed(
        f"cannot write in {folder}: {error.strerror or error}",
        hint="name a folder that exists, is writable and has room",
        phase="spawn",
    )
