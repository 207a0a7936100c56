"""Start a process that outlives this one, and that holds a lock while it runs.

Theory of operation
-------------------
A daemon is one of corral's own modules, run in its own process and its own session. It keeps
running when its starter exits, is killed, or loses its terminal. Its life is defined by a lock on
a file (see ``corral._system.fs``), not by a pid: a pid may be reused, a lock is released by
the kernel.

States, seen from the lock file:

- free: no daemon runs. ``start`` may start one.
- held: a daemon runs, or is being started.

Who calls: any process, and several at once. ``start`` takes the lock first, then starts the
daemon, which inherits the descriptor that holds the lock, then closes its own copy of the
descriptor. There is no moment between these steps in which the lock is free.

Guaranteed:

- At most one daemon per lock file runs. ``start`` returns False if one runs already.
- ``fs.is_locked`` is true from before the first instruction of the daemon to its end, and
  false afterwards, however it ended.
- The starter does not become the daemon's parent: an intermediate process forks and exits, so
  no process has to wait for the daemon. Its output goes to the log file.
- The working directory cannot change which modules the daemon imports.

Crashes:

- The starter dies after it took the lock and before the daemon started: the lock is free again.
- The starter dies later: the daemon runs on.
- The daemon is killed: the lock is free, the next ``start`` starts another one. Files that it had
  not finished writing are unchanged (see ``corral._system.fs``).
- The machine stops: all locks are free.

Daemons sleep until there is work. ``wake_fifo`` wakes one: it writes a byte to a FIFO that the
daemon reads. The byte carries no information. The daemon looks for work in its folder, so a byte
too many or a byte lost when the FIFO is full does no harm.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from corral._system import fs, paths

_FORK = """
import os, sys
if os.fork():
    os._exit(0)
from importlib import import_module
import_module(sys.argv[1]).main(*sys.argv[2:])
"""
"""The intermediate process. It exits at once, so that the daemon is not our child."""


def start(module: str, *arguments: str, lock: Path, log: Path) -> bool:
    """Call ``main(*arguments)`` of a module in a new daemon.

    Returns False, and starts nothing, if another process holds ``lock``. Standard output and
    standard error are appended to ``log``. Raises ``OSError``.
    """
    try:
        lock_fd = fs.lock_file(lock)
    except BlockingIOError:
        return False
    try:
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # -P: the working directory must not decide what is imported.
            ended = subprocess.run(
                [sys.executable, "-P", "-c", _FORK, module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                env={**os.environ, **paths.for_child()},
                pass_fds=(lock_fd,),
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(log_fd)
        if ended.returncode:
            # The intermediate process could not start or not fork.
            raise OSError(errno.EAGAIN, "the process cannot be started, see its log", str(log))
        return True
    finally:
        os.close(lock_fd)


def leave_session() -> None:
    """Continue in a new process, the leader of a new session; returns only there. The process that
    was started waits for it, and ends at a signal: so a program that ends what it started does not
    end what this process still has to do. Call it before there is a thread or an event loop."""
    child = os.fork()
    if not child:
        os.setsid()
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):  # else the other side would not see that the child closes them
        os.dup2(null, fd)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def wake_fifo(fifo: Path) -> None:
    """Wake the daemon that reads this FIFO. Does nothing if no daemon reads it."""
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"!")
    except OSError:
        pass  # the FIFO is full: the daemon has enough to wake it
    finally:
        os.close(fd)
