"""Every difference between operating systems in handling processes, and nothing else.

Linux is the measured case: pidfds, /proc, sub-reaping; ``descriptors`` has files and pipes.
macOS looks at processes through ``ps``; Windows ends trees through ``taskkill``.
Nothing here keeps a run's state: that is ``tree`` and ``process``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ctypes

LINUX = sys.platform == "linux"
WINDOWS = sys.platform == "win32"

KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


class Proc(NamedTuple):
    """A process as it was a moment ago; ``(pid, born)`` names it for good."""

    pid: int
    born: str
    ppid: int
    pgid: int
    sid: int
    alive: bool
    """False for a zombie: dead, not yet reaped."""


def look(pid: int) -> Proc | None:
    """The process of this pid, or None when there is none."""
    if not LINUX:
        return _windows_look(pid) if WINDOWS else _ps().get(pid)
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The name may hold spaces and brackets: the fields begin after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A zombie with threads left is one whose first thread ended: it still runs.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return Proc(pid, fields[19].decode(), int(fields[1]), int(fields[2]), int(fields[3]), alive)


def children(pid: int) -> list[int]:
    """The children of another process, whichever of its threads forked them."""
    if not LINUX:
        return [] if WINDOWS else [proc.pid for proc in _ps().values() if proc.ppid == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return []
    lists = (_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for children in lists for child in children.split()]


def strays() -> list[int]:
    """Where a run's orphans can be: among our own children where they fall to us,
    else anywhere on the machine."""
    if LINUX and adopting():
        # The kernel hands orphans to our first thread.
        own = _read(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        # A run has a session of its own: what shares ours is the child of another.
        ours = os.getsid(0)
        return [pid for pid in map(int, own.split()) if _session(pid) != ours]
    return pids()


def _session(pid: int) -> int | None:
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(pid)
    return None


def resident(pid: int) -> int | None:
    """Bytes of memory that a process holds; None where that cannot be told."""
    if not LINUX:
        return None
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else None


def pids() -> list[int]:
    """Every process on the machine that can be seen."""
    if LINUX:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [] if WINDOWS else list(_ps())


def _read(path: str) -> bytes:
    """A file of /proc; empty when its process is gone or not ours to see."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    try:
        found = b""
        while chunk := os.read(fd, 65_536):
            found += chunk
        return found
    except (ProcessLookupError, PermissionError):
        return b""
    finally:
        os.close(fd)


_ps_seen: tuple[float, dict[int, Proc]] = (0.0, {})


def _ps() -> dict[int, Proc]:
    """The process table through ``ps``, at most 20 ms old."""
    global _ps_seen  # noqa: PLW0603
    if time.monotonic() - _ps_seen[0] > 0.02:
        columns = "pid=,ppid=,pgid=,stat=,lstart="
        listing = subprocess.run(["/bin/ps", "-A", "-o", columns], capture_output=True, check=False)
        table: dict[int, Proc] = {}
        for line in listing.stdout.decode(errors="replace").splitlines():
            pid, ppid, pgid, state, *born = line.split()
            alive = not state.startswith("Z")
            table[int(pid)] = Proc(int(pid), " ".join(born), int(ppid), int(pgid), 0, alive)
        _ps_seen = (time.monotonic(), table)
    return _ps_seen[1]


def _windows_look(pid: int) -> Proc | None:
    if sys.platform != "win32":
        return None
    import ctypes

    kernel = ctypes.WinDLL("kernel32")
    handle = kernel.OpenProcess(0x1000, False, pid)
    if not handle:
        return None
    try:
        times = [ctypes.c_uint64() for _ in range(4)]
        kernel.GetProcessTimes(handle, *(ctypes.byref(moment) for moment in times))
        ended = times[1].value != 0
        return Proc(pid, str(times[0].value), 0, 0, 0, not ended)
    finally:
        kernel.CloseHandle(handle)


@functools.cache
def boot() -> str:
    """Names this boot of the machine: a pid from another says nothing."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip() if LINUX else ""


@functools.cache
def pid_space() -> str:
    """Names the set of processes that our pids are of: a container has its own."""
    return os.readlink("/proc/self/ns/pid") if LINUX else ""


def new_stamp() -> int | None:
    """A number that a run and all its descendants can be told by; None where none can.

    It is put on as a limit on real-time scheduling, years long and so never reached.
    Unlike an environment variable it survives an emptied environment, and it can
    still be read off a zombie.
    """
    if sys.platform != "linux":
        return None
    import resource

    ceiling = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    ceiling = 1 << 62 if ceiling == resource.RLIM_INFINITY else ceiling
    # Below what holds already, so that runs inside runs can be stamped too.
    return (
        ceiling // 2 + int.from_bytes(os.urandom(8)) % (ceiling // 2)
        if ceiling >= 1 << 48
        else None
    )


def stamp(pid: int, number: int | None) -> None:
    """Put it on a new child. What that has forked already goes without."""
    if sys.platform == "linux" and number is not None:
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (number, number))


@functools.cache
def may_drop_limits_right() -> bool:
    """Whether we could raise a hard limit (CAP_SYS_RESOURCE) and may take that right from a
    child for good (CAP_SETPCAP). Root can, unless its container forbids it."""
    status = re.search(rb"^CapEff:\s+([0-9a-f]+)", _read("/proc/self/status"), re.M)
    needed = 1 << 8 | 1 << 24
    return status is not None and int(status[1], 16) & needed == needed


def carries(pid: int, mark: str, number: int | None) -> bool:
    """Whether a process bears a run's stamp, or its mark in the environment."""
    if not LINUX:
        return False
    if number is not None and b" %d " % number in _read(f"/proc/{pid}/limits"):
        return True
    return mark.encode() in _read(f"/proc/{pid}/environ")


def lowered_stamp(pid: int) -> int | None:
    """The stamp of a process that bears no mark, where it is below our own limit: then it, or
    what it descends from, was started by a run of ours, or lowered its limit by itself. None
    where nothing of that can be told, also for another program's run, which bears its mark."""
    if sys.platform != "linux":
        return None
    import resource

    limit = re.search(rb"^Max realtime timeout +\S+ +(\d+) ", _read(f"/proc/{pid}/limits"), re.M)
    if limit is None:  # unlimited, or not ours to see
        return None
    ours = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    is_lower = ours == resource.RLIM_INFINITY or int(limit[1]) < ours
    if not is_lower or b"CORRAL_RUN_MARK=" in _read(f"/proc/{pid}/environ"):
        return None
    return int(limit[1])


_holders: set[str] = set()
_holding = threading.RLock()
"""Re-entrant: a finalizer can run in the middle of a spawn."""


def adopt_orphans(holder: str) -> None:
    """From now until ``release_orphans``, orphaned descendants become our children."""
    with _holding:
        _holders.add(holder)
        _subreaper(True)


def release_orphans(holder: str) -> None:
    with _holding:
        _holders.discard(holder)
        if not _holders:
            _subreaper(False)


def adopting() -> bool:
    return bool(_holders) and _has_children_files()


@functools.cache
def _has_children_files() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _subreaper(on: bool) -> None:
    if LINUX:
        libc().prctl(36, int(on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@functools.cache
def libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def send(proc: Proc, sig: int) -> None:
    """Signal this very process, never another that came by its pid."""
    if WINDOWS:
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(proc.pid)], check=False)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform != "linux":
            os.kill(proc.pid, sig)
            return
        pidfd = os.pidfd_open(proc.pid)
        try:
            now = look(proc.pid)
            if now is not None and now.born == proc.born:
                signal.pidfd_send_signal(pidfd, sig)
        finally:
            os.close(pidfd)


def send_group(pgid: int, sig: int) -> None:
    """Signal a group whose leader we have not reaped yet: so the number is still its."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pgid, sig)


def on_exit(
    loop: asyncio.AbstractEventLoop, child: subprocess.Popen[bytes], tell: Callable[[], None]
) -> Callable[[], None]:
    """Have ``tell`` called once when the child has exited; returns how to stop."""
    if sys.platform == "linux":
        pidfd = os.pidfd_open(child.pid)
        open_fds = [pidfd]

        def stop() -> None:
            while open_fds:
                if not loop.is_closed():
                    loop.remove_reader(open_fds[0])
                os.close(open_fds.pop())

        def told() -> None:
            stop()
            tell()

        loop.add_reader(pidfd, told)
        return stop

    timers: list[asyncio.TimerHandle] = []

    def check() -> None:
        timers.clear()
        if child.poll() is None:
            timers.append(loop.call_later(0.02, check))
        else:
            tell()

    def stop_timer() -> None:
        while timers:
            timers.pop().cancel()

    check()
    return stop_timer


def exit_status(child: subprocess.Popen[bytes]) -> tuple[int | None, int | None] | None:
    """The exit code or the signal that ended a child; None while it runs, both None when
    somebody else reaped it. On Linux it stays to be reaped."""
    if sys.platform == "linux":
        try:
            how = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return None, None
        if how is None:
            return None
        exited = how.si_code == os.CLD_EXITED
        return (how.si_status, None) if exited else (None, how.si_status)
    code = child.poll()
    if code is None:
        return None
    return (None, -code) if code < 0 and not WINDOWS else (code, None)
