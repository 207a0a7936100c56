"""Mounts and process limits for one supervisor, without rights of root: a user namespace.

The supervisor enters a new user and mount namespace. There it may mount small file systems, and
what it mounts is gone with its last process. Its user is one that ``/etc/passwd`` does not list,
so that a run without ``HOME`` has no home. Programs that it starts have no capabilities.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import subprocess
import sys
from pathlib import Path

USER = 54321
"""The id of the user inside."""
_NEWUSER, _NEWNS = 0x1000_0000, 0x0002_0000
_RDONLY, _REMOUNT, _BIND, _PRIVATE, _REC = 1, 32, 4096, 1 << 18, 16384
_CHILD_SUBREAPER = 36
_PIDS_FOLDERS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def adopt_orphans() -> None:
    """From now on every orphan below this process becomes its child: none can get away."""
    _check(_libc().prctl(_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def enter() -> None:
    """Enter a new user and mount namespace. Raises ``OSError`` where that is not allowed."""
    user, group = os.getuid(), os.getgid()
    _check(_libc().unshare(_NEWUSER | _NEWNS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{USER} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{USER} {group} 1")
    _mount("none", "/", "", _PRIVATE | _REC)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [each.encode() for each in (source, target, kind)]
    _check(_libc().mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def mount_small_disk(folder: Path, size: int) -> None:
    _mount("tmpfs", str(folder), "tmpfs", 0, f"size={size},mode=700")


def mount_itself(folder: Path) -> None:
    """Make a folder a mount, so that ``make_read_only`` applies to it alone."""
    _mount(str(folder), str(folder), "", _BIND)


def make_read_only(folder: Path) -> None:
    """Raises ``OSError`` as long as a file in it is open for writing."""
    _mount("none", str(folder), "", _REMOUNT | _BIND | _RDONLY)


def make_writable(folder: Path) -> None:
    _mount("none", str(folder), "", _REMOUNT | _BIND)


@functools.cache
def is_allowed() -> bool:
    """Whether this machine allows such namespaces. Tried in its own process."""
    program = "from support import namespace; namespace.enter()"
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
    )
    return done.returncode == 0


class ProcessLimit:
    """A limit on the number of processes. For root a control group, which needs the controller
    ``pids``; for others RLIMIT_NPROC, which does not bind root, in a user namespace, so that other
    processes of the user do not count."""

    def __init__(self, name: str) -> None:
        folder = _pids_folder()
        self._group = folder / name if folder else None
        self._pid = 0
        if self._group is not None:
            self._group.mkdir()

    @staticmethod
    def is_possible() -> bool:
        return _pids_folder() is not None or (os.getuid() != 0 and is_allowed())

    @property
    def needs_namespace(self) -> bool:
        return self._group is None

    def join(self) -> None:
        """Called in the process that is limited, before it runs its program."""
        if self._group is not None:
            (self._group / "cgroup.procs").write_text("0")

    def allow_more(self, pid: int, more: int) -> None:
        """Allow this many processes and threads beside those that run now."""
        if self._group is not None:
            now = int((self._group / "pids.current").read_text())
            (self._group / "pids.max").write_text(str(now + more))
        else:
            most = _tasks_in_namespace() + more
            resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))

    def lift(self) -> None:
        if self._group is not None:
            (self._group / "pids.max").write_text("max")

    def remove(self) -> None:
        if self._group is not None:
            self._group.rmdir()


@functools.cache
def _pids_folder() -> Path | None:
    """The control group below which this process may make others with a limit of processes."""
    if os.getuid() != 0:
        return None
    for folder in _PIDS_FOLDERS:
        probe = folder / f"corral-chaos-probe-{os.getpid()}"
        try:
            probe.mkdir()
            found = (probe / "pids.max").exists()
            probe.rmdir()
        except OSError:
            continue
        if found:
            return folder
    return None


def _tasks_in_namespace() -> int:
    mine = os.readlink("/proc/self/ns/user")
    count = 0
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{entry}/ns/user") == mine:
                count += len(os.listdir(f"/proc/{entry}/task"))
        except OSError:
            continue
    return count
