"""Every difference between operating systems in processes, pipes, files and file watching.

Linux is the tested case: pidfds, ``/proc``, sub-reaping, inotify. macOS lists processes with
``ps``. Nothing here keeps the state of a run: see ``corral._system.process``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import ctypes

LINUX = sys.platform == "linux"


def restart_in_utf8() -> None:
    """Start this program again with names of files in UTF-8, if its locale has another encoding,
    in which not every name can be written. Does not return then."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


class ProcessInfo(msgspec.Struct, frozen=True, gc=False):
    """A process as it was a moment ago. ``(pid, start_time)`` identifies it for ever."""

    pid: int
    start_time: str
    ppid: int
    pgid: int
    sid: int
    alive: bool
    """False for a zombie: dead, but not reaped yet."""


def get_process(pid: int) -> ProcessInfo | None:
    """Return the process with this pid, or None."""
    if not LINUX:
        return _ps().get(pid)
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The name may contain spaces and brackets: the fields start after the last bracket.
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A zombie that has threads is one whose first thread ended: it still runs.
    alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
    return ProcessInfo(
        pid, fields[19].decode(), int(fields[1]), int(fields[2]), int(fields[3]), alive
    )


@functools.cache
def ancestor_values(name: str) -> tuple[str, ...]:
    """The values of an environment variable in the processes above this one, as they were started:
    some programs pass on few variables. Empty where the system does not show them."""
    values: list[str] = []
    process = get_process(os.getppid()) if LINUX else None
    while process is not None and process.pid > 1:
        for variable in _read(f"/proc/{process.pid}/environ").split(b"\0"):
            if variable.startswith(name.encode() + b"="):
                values.append(variable.partition(b"=")[2].decode(errors="replace"))
        process = get_process(process.ppid)
    return tuple(values)


def children(pid: int) -> list[int]:
    """The children of another process, of all its threads."""
    if not LINUX:
        return [proc.pid for proc in _ps().values() if proc.ppid == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return []
    lists = (_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for children in lists for child in children.split()]


def orphan_candidates(besides: Collection[int] = ()) -> list[int]:
    """The pids among which a run's orphans are: our own children if orphans become our children,
    else all processes. ``besides``: pids that are left out, such as those of other runs, of which
    there may be thousands."""
    if LINUX and is_adopting():
        # The kernel makes orphans children of our first thread.
        own = _read(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        # A run has its own session: a process in our session is not part of a run.
        ours = os.getsid(0)
        orphans: list[int] = []
        for pid in set(map(int, own.split())).difference(besides):
            try:
                is_of_run = os.getsid(pid) != ours
            except ProcessLookupError:
                is_of_run = True
            if is_of_run:
                orphans.append(pid)
        return orphans
    return [pid for pid in all_pids() if pid not in besides]


def load_per_processor() -> float:
    """How many programs wanted each processor in the last minute; at least 1."""
    with contextlib.suppress(OSError):
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return 1.0


def resident_memory(pid: int) -> int | None:
    """The memory of a process in bytes; None if that is unknown."""
    if not LINUX:
        return None
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else None


def all_pids() -> list[int]:
    """All processes of the machine that are visible to us."""
    if LINUX:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return list(_ps())


def _read(path: str) -> bytes:
    """Read a file of /proc. Empty if its process is gone or not accessible."""
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


_ps_cache: tuple[float, dict[int, ProcessInfo]] = (0.0, {})


def _ps() -> dict[int, ProcessInfo]:
    """The process table from ``ps``, at most 20 ms old."""
    global _ps_cache  # noqa: PLW0603
    if time.monotonic() - _ps_cache[0] > 0.02:
        columns = "pid=,ppid=,pgid=,stat=,lstart="
        listing = subprocess.run(["/bin/ps", "-A", "-o", columns], capture_output=True, check=False)
        table: dict[int, ProcessInfo] = {}
        for line in listing.stdout.decode(errors="replace").splitlines():
            pid, ppid, pgid, state, *start_time = line.split()
            alive = not state.startswith("Z")
            table[int(pid)] = ProcessInfo(
                int(pid), " ".join(start_time), int(ppid), int(pgid), 0, alive
            )
        _ps_cache = (time.monotonic(), table)
    return _ps_cache[1]


_raising = threading.RLock()
"""Re-entrant: a finalizer can run in the middle of the block."""


@contextlib.contextmanager
def extra_descriptors() -> Generator[None]:
    """Within the block, which must be short, this process may open more descriptors than its soft
    limit allows: as many as the hard limit does. For the end of a run, which must not depend on
    how many files the program around it has open."""
    if sys.platform != "linux":
        yield
        return
    import resource  # loaded since the start of the run (``new_stamp``): this opens nothing

    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def most_descriptors() -> int:
    """How many descriptors this process may have."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def limit_memory(size: int) -> None:
    """This process may not have more bytes of memory than this."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


@functools.cache
def boot_id() -> str:
    """Identify this boot of the machine: a pid of another boot means nothing."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip() if LINUX else ""


@functools.cache
def pid_namespace() -> str:
    """Identify the pid namespace: a container has its own pids."""
    return os.readlink("/proc/self/ns/pid") if LINUX else ""


def new_stamp() -> int | None:
    """Return a number that identifies a run and all its descendants; None if the system has no such
    limit.

    It is set as a limit on real-time scheduling, of years, so it is never reached. Unlike an
    environment variable it survives an emptied environment, and it can be read from a zombie.
    """
    if sys.platform != "linux":
        return None
    import resource

    ceiling = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    ceiling = 1 << 62 if ceiling == resource.RLIM_INFINITY else ceiling
    # Below the current limit, so that runs inside runs can have a stamp too.
    return (
        ceiling // 2 + int.from_bytes(os.urandom(8)) % (ceiling // 2)
        if ceiling >= 1 << 48
        else None
    )


def apply_stamp(pid: int, number: int | None) -> None:
    """Set the stamp of a new child. Processes that it has forked already do not get it."""
    if sys.platform == "linux" and number is not None:
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (number, number))


@functools.cache
def can_drop_limits_right() -> bool:
    """Whether we could raise a hard limit (CAP_SYS_RESOURCE) and can take that capability from a
    child permanently (CAP_SETPCAP). Root can, unless its container forbids it."""
    return _has_rights(1 << 8 | 1 << 24)


@functools.cache
def can_enter_networks() -> bool:
    """Whether a thread can enter the network of a child (CAP_SYS_ADMIN)."""
    return _has_rights(1 << 21)


def _has_rights(needed: int) -> bool:
    """Whether this process has these capabilities."""
    _, _, rights = _read("/proc/self/status").partition(b"\nCapEff:")
    return bool(rights) and int(rights.split(maxsplit=1)[0], 16) & needed == needed


def enter_namespace(number: int) -> None:
    """Move this thread into a namespace, for which there is a descriptor. Raises ``OSError``."""
    import ctypes

    if libc().setns(number, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def owner_of_namespace(number: int) -> int:
    """A descriptor of the user namespace whose rights count in a namespace. Raises ``OSError``."""
    import fcntl

    get_owner = 0xB701  # NS_GET_USERNS, ioctl_ns(2)
    return fcntl.ioctl(number, get_owner)


def can_fork(largest: int) -> bool:
    """Whether a fork of this process is safe and cheap: it has one thread, and at most this many
    bytes of memory."""
    used = resident_memory(os.getpid())
    return used is not None and used <= largest and len(os.listdir("/proc/self/task")) == 1


def has_mark(pid: int, mark: str, number: int | None) -> bool:
    """Whether a process has a run's stamp, or its mark in the environment."""
    if not LINUX:
        return False
    if number is not None and b" %d " % number in _read(f"/proc/{pid}/limits"):
        return True
    return mark.encode() in _read(f"/proc/{pid}/environ")


def lowered_stamp(pid: int) -> int | None:
    """The stamp of a process without a mark, if it is below our own limit. Then the process
    descends from one of our runs, or lowered its limit itself. None if that is unknown, and for a
    run of another program, which has its mark."""
    if sys.platform != "linux":
        return None
    import resource

    limit = re.search(rb"^Max realtime timeout +\S+ +(\d+) ", _read(f"/proc/{pid}/limits"), re.M)
    if limit is None:  # unlimited, or not accessible
        return None
    ours = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    is_lower = ours == resource.RLIM_INFINITY or int(limit[1]) < ours
    if not is_lower or b"CORRAL_RUN_MARK=" in _read(f"/proc/{pid}/environ"):
        return None
    return int(limit[1])


_holders: set[str] = set()
_adopter: int | None = None
"""The process that adopts orphans. A fork has a copy of this and does not adopt."""
_holding = threading.RLock()
"""Re-entrant: a finalizer can run in the middle of a spawn."""


def adopt_orphans(holder: str) -> None:
    """Until ``release_orphans``, orphaned descendants become our children."""
    global _adopter  # noqa: PLW0603
    with _holding:
        _holders.add(holder)
        # The call visits all our descendants: once is enough.
        if _adopter != os.getpid():
            _subreaper(True)
            _adopter = os.getpid()


def release_orphans(holder: str) -> None:
    global _adopter  # noqa: PLW0603
    with _holding:
        _holders.discard(holder)
        if not _holders:
            _subreaper(False)
            _adopter = None


def is_adopting() -> bool:
    return bool(_holders) and os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _subreaper(on: bool) -> None:
    if LINUX:
        libc().prctl(36, int(on), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@functools.cache
def libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def send_signal(proc: ProcessInfo, sig: int) -> None:
    """Signal exactly this process, never another one that got its pid."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform != "linux":
            os.kill(proc.pid, sig)
            return
        pidfd = os.pidfd_open(proc.pid)
        try:
            now = get_process(proc.pid)
            if now is not None and now.start_time == proc.start_time:
                signal.pidfd_send_signal(pidfd, sig)
        finally:
            os.close(pidfd)


def signal_group(pgid: int, sig: int) -> None:
    """Signal a group whose leader is not reaped yet: so the number still belongs to it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, sig)


def on_exit(
    loop: asyncio.AbstractEventLoop, child: subprocess.Popen[bytes], callback: Callable[[], None]
) -> Callable[[], None]:
    """Call ``callback`` once when the child has exited. Returns a function that stops that."""
    if sys.platform == "linux":
        pidfds = [os.pidfd_open(child.pid)]

        def stop_watching() -> None:
            while pidfds:
                if not loop.is_closed():
                    loop.remove_reader(pidfds[0])
                os.close(pidfds.pop())

        def on_readable() -> None:
            stop_watching()
            callback()

        loop.add_reader(pidfds[0], on_readable)
        return stop_watching

    timers: list[asyncio.TimerHandle] = []

    def check() -> None:
        timers.clear()
        if child.poll() is None:
            timers.append(loop.call_later(0.02, check))
        else:
            callback()

    def stop_timer() -> None:
        while timers:
            timers.pop().cancel()

    check()
    return stop_timer


def exit_status(
    child: subprocess.Popen[bytes] | int,
) -> tuple[int | None, int | None] | None:
    """The exit code or the signal that ended a child. None while it runs; both None if other
    code reaped it. On Linux the pid is enough, and the child is not reaped by this."""
    if isinstance(child, int):
        try:
            how = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return None, None
        if how is None:
            return None
        exited = how.si_code == os.CLD_EXITED
        return (how.si_status, None) if exited else (None, how.si_status)
    code = child.poll()
    if code is None:
        return None
    return (None, -code) if code < 0 else (code, None)


def scratch_file(folder: Path) -> tuple[int, int]:
    """Create a private file without a name. Return a descriptor that reads and one that
    appends."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some file systems have no files without a name
            appends = os.open(folder, flags | os.O_TMPFILE, 0o600)
            try:
                return os.open(f"/proc/self/fd/{appends}", os.O_RDWR), appends
            except OSError:
                os.close(appends)
                raise
    path = folder / f"stdout-{os.urandom(8).hex()}"
    appends = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        reads = os.open(path, os.O_RDWR)
    except OSError:
        os.close(appends)
        raise
    finally:
        path.unlink(missing_ok=True)
    return reads, appends


def memory_file() -> int:
    """Return a descriptor of a file without a name, from which a child reads its stdin."""
    if sys.platform == "linux":
        return os.memfd_create("corral-stdin")
    import tempfile  # slow to load, and not needed on Linux

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def punch_hole(fd: int, start: int, length: int) -> bool:
    """Release a part of a file to the disk. Return False if the system cannot do that."""
    if sys.platform != "linux":
        return False
    import ctypes

    keep_size_and_punch = 0x01 | 0x02
    offsets = ctypes.c_int64(start), ctypes.c_int64(length)
    system = libc()
    fallocate = getattr(system, "fallocate64", None) or system.fallocate
    return bool(fallocate(fd, keep_size_and_punch, *offsets) == 0)


def grow_pipe(fd: int, size: int) -> bool:
    """Enlarge the buffer of a pipe. Return False if the system cannot do that."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size) >= size
    except OSError:
        return False


def inotify_open() -> int:
    """Return a descriptor that becomes readable when a watched file is written. Raises
    ``OSError``."""
    if sys.platform != "linux":
        raise OSError("this system has no inotify")
    import ctypes

    fd = int(libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    return fd


WRITTEN_ONCE = 0x2 | 0x80000000
"""Of an open file: report the next write, and no further one."""
SAVED = 0x8 | 0x80 | 0x400 | 0x800
"""Of a folder: report files that were closed after writing or moved into it, and its removal."""


def inotify_add(inotify: int, path: str | Path, mask: int) -> int:
    """Watch a file or folder. Return the number that its reports will have. Raises ``OSError``."""
    import ctypes

    watch = int(libc().inotify_add_watch(inotify, os.fsencode(path), ctypes.c_uint32(mask)))
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    return watch


def inotify_events(inotify: int) -> list[tuple[int, int, bytes]]:
    """Read reports of the kernel: the number of the watch, what happened, and the name of the file
    in a watched folder. The number is -1 if reports were lost. Empty if there are none."""
    try:
        reports = os.read(inotify, 65_536)
    except BlockingIOError:
        return []
    events: list[tuple[int, int, bytes]] = []
    at = 0
    while at < len(reports):
        watch, mask, _, length = struct.unpack_from("iIII", reports, at)
        events.append((watch, mask, reports[at + 16 : at + 16 + length].rstrip(b"\0")))
        at += 16 + length
    return events
