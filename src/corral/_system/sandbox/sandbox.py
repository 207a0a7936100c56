"""Which sandbox this machine has, how a program is started in it, and what it enforces.

Bubblewrap (``bubblewrap``) is the first choice. Landlock is the second: a program can write only
where it may. It needs no privileges and no user namespaces. It covers writing to files only:
reading, the network and the sockets of this machine stay as they are, and so do the mode, owner,
times and attributes of files. ``restrict.py`` runs before the program, restricts itself and
executes the program, which inherits the restriction with all that it starts. Root loses its
capabilities: with them it could write to a disk, or make the device of one.

``enforced_rows`` returns a row for each way out of the workspace. The rows are derived from what
the sandbox is built of. For bubblewrap that is the list of its arguments: a folder that is mounted
is not hidden, whatever a document says.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from corral._system import paths, platform
from corral._system.paths import is_inside
from corral._system.sandbox import bubblewrap, gateway, seccomp
from corral._system.sandbox.box import Box, Wrapped, program_text, replace_proxy
from corral.errors import SandboxFailed
from corral.policy import SandboxCell, SandboxRow

if TYPE_CHECKING:
    from corral._system.sandbox.repository_guard import GitNotice, RepositoryGuard


Method = Literal["bubblewrap", "landlock"]
_WORKS, _ENTERS = "works", "enters"
"""Results of a trial that are remembered."""


class Support(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine offers."""

    method: Method | None
    """None: no sandbox at all."""
    program: str = ""
    reason: str = ""
    """Why it is not bubblewrap."""
    hint: str = ""
    can_enter: bool = False
    """Corral can open sockets in the network of the sandbox: see ``gateway``."""

    @property
    def is_complete(self) -> bool:
        """Whether files, network, sockets and other processes are covered, and not writing only."""
        return self.method == "bubblewrap"


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A box, and the means to build it."""

    support: Support
    box: Box
    report: Callable[[GitNotice], None] | None = None
    """Called about repositories that a program made or changed. By default they are Python
    warnings."""

    def guard(self) -> RepositoryGuard:
        """Protects the repositories in ``box.guarded`` during one start. Blocks. Raises ``OSError``
        if corral's state cannot be written."""
        from corral._system.sandbox.repository_guard import RepositoryGuard

        has_mounts = self.support.method != "landlock"
        return RepositoryGuard.begin(self.box, has_mounts=has_mounts, report=self.report)

    def wrap(self, read_only: tuple[str, ...] = ()) -> Wrapped:
        """Prepare one start. ``read_only``: further parts of writable folders that can only be
        read. Raises ``OSError`` if no more files can be opened."""
        home = os.path.expanduser("~")
        box = self.box
        if read_only:
            box = msgspec.structs.replace(box, read_only=(*box.read_only, *read_only))
        match self.support.method:
            case "bubblewrap":
                return bubblewrap.wrap(
                    self.support.program, box, home, can_enter=self.support.can_enter
                )
            case "landlock":
                return wrap_by_landlock(box)
            case None:
                raise SandboxFailed(f"there is no sandbox: {self.support.reason}")

    def environment(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """The environment of a program in it. Without a network, the user's proxies are left out:
        they cannot be reached from inside, and their URLs may contain passwords."""
        if self.box.network or not self.support.is_complete:
            return given
        return replace_proxy(given, self.box)


def find_support(workspace: str | None = None) -> Support:
    """The best sandbox that works on this machine, tried for real."""
    if not platform.LINUX:
        return Support(
            method=None,
            reason="corral has a sandbox on Linux only",
            hint="Run corral on Linux or in a container, with sandbox='off'.",
        )
    program = bubblewrap.find(workspace)
    support = probe(program) if program else None
    if support is not None and support.method is not None:
        return support
    reason = support.reason if support else "bubblewrap is not installed"
    from corral._system.sandbox import diagnosis

    return Support(
        method="landlock" if landlock_version() >= OLDEST_LANDLOCK else None,
        program=program or "",
        reason=reason,
        hint=diagnosis.advice(reason) if program else diagnosis.INSTALL,
    )


def probe(program: str) -> Support:
    """Try ``bwrap``. That it works is remembered until the program changes or the machine is
    restarted, for each way to open sockets inside."""
    enters = gateway.can_enter_cheaply()
    way = "enter" if enters else "inner"
    key = paths.answer_key(program, "probe", way, platform.boot_id(), str(os.geteuid()))
    result = paths.known_answer("sandbox", key)
    reason = ""
    if result not in (_WORKS, _ENTERS):
        from corral._system.sandbox import diagnosis

        result = None
        if enters and diagnosis.try_sandbox(program, can_enter=True) is None:
            result = _ENTERS
        elif (reason := diagnosis.try_sandbox(program) or "") == "":
            result = _WORKS
        if result is not None:
            paths.remember_answer("sandbox", key, result)
    return Support(
        method=None if reason else "bubblewrap",
        program=program,
        reason=reason,
        can_enter=result == _ENTERS,
    )


def describe(support: Support) -> str:
    """What this machine offers, for a person: the method, its version, what it covers, and else
    the reason and what to do."""
    if support.method == "bubblewrap":
        from corral._system.sandbox import diagnosis

        version = diagnosis.describe_version(support.program)
        return f"files, network, sockets and processes, by bubblewrap ({support.program}) {version}"
    reason = (
        f"bubblewrap ({support.program}): {support.reason}" if support.program else support.reason
    )
    if support.method is None:
        return f"none. {reason}. {support.hint}"

    return (
        f"writes only, by Landlock (version {landlock_version()}): reading, network, sockets and"
        f" processes are not limited. {reason}. {support.hint}"
    )


_MOUNTS = {
    "--bind": "writable",
    "--ro-bind": "readable",
    "--ro-bind-data": "empty",
    "--symlink": "empty",
}
_EMPTY = ("--tmpfs", "--dev", "--proc")
_NO_FILTER = "corral has no filter of system calls for this processor"
_MOST_NAMES = 3


def enforced_rows(
    support: Support, box: Box, home: str, secrets: Iterable[str] = ()
) -> tuple[SandboxRow, ...]:
    """The rows of a box. ``secrets``: paths with credentials of others than the agent."""
    match support.method:
        case "bubblewrap":
            return _by_bubblewrap(box, home, secrets)
        case "landlock":
            named = [os.path.realpath(path) for path in box.writable]
            cwd = os.path.realpath(box.cwd)
            why = "Landlock limits writing only"
            return (
                _denied("read outside", why, False),
                _denied("write outside", _more_folders(named, cwd), True),
                _inside(cwd in named),
                SandboxRow("network", "allow") if box.network else _denied("network", why, False),
                _denied("local sockets", why, False),
                _denied("other processes", why, False),
                _denied("credentials", "they can be read, and not changed", False),
            )
        case None:
            return ()


class _Mounts:
    """The file system inside: path → ``writable``, ``readable`` or ``empty``."""

    def __init__(self, options: Sequence[str]) -> None:
        self._kinds = {"/": "empty"}
        words = iter(options)
        for word in words:
            if word in _MOUNTS:
                source, path = next(words), next(words)
                self._kinds[path] = "empty" if source == "/dev/null" else _MOUNTS[word]
            elif word in _EMPTY:
                self._kinds[next(words)] = "empty"

    def kind(self, path: str) -> str:
        while path not in self._kinds:
            path = os.path.dirname(path)
        return self._kinds[path]

    def paths(self, kind: str) -> list[str]:
        return [path for path, each in self._kinds.items() if each == kind]


def _by_bubblewrap(box: Box, home: str, secrets: Iterable[str]) -> tuple[SandboxRow, ...]:
    options = bubblewrap.layout(box, home)
    mounts = _Mounts(options)
    cwd = os.path.realpath(box.cwd)
    seen = [path for path in ("/", home) if mounts.kind(path) != "empty"]
    named = [os.path.realpath(path) for path in box.writable]
    elsewhere = [
        path
        for path in map(os.path.realpath, mounts.paths("writable"))
        if not any(is_inside(path, folder) for folder in named)
    ]
    shown = [path for path in secrets if mounts.kind(path) != "empty" and os.path.exists(path)]
    network = SandboxRow("network", "allow")
    if not box.network:
        named_hosts = (*(endpoint.host for endpoint in box.endpoints), *map(str, box.hosts))
        reached = _names([*dict.fromkeys(named_hosts)]) or "the model and the given tool servers"
        is_limited = "--unshare-net" in options
        network = _denied("network", f"only {reached} can be reached", is_limited)
    sockets = "no Unix socket can be opened" if seccomp.is_supported() else _NO_FILTER
    return (
        _denied("read outside", "the system's programs and added folders can be read", not seen),
        _denied("write outside", _more_folders(named, cwd), not elsewhere),
        _inside(mounts.kind(cwd) == "writable"),
        network,
        _denied("local sockets", sockets, seccomp.is_supported()),
        _denied("other processes", "they cannot be seen", "--unshare-pid" in options),
        _denied("credentials", _names(shown) or "none but the agent's own", not shown),
    )


def _denied(cell: SandboxCell, note: str, is_enforced: bool) -> SandboxRow:
    return SandboxRow(cell, "deny", "sandbox" if is_enforced else "impossible", note)


def _inside(can_write: bool) -> SandboxRow:
    return SandboxRow("write inside", "allow") if can_write else _denied("write inside", "", True)


def _more_folders(folders: Sequence[str], cwd: str) -> str:
    more = [path for path in folders if not is_inside(path, cwd)]
    return f"also writable: {_names(more)}" if more else ""


def _names(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    more = [f"{rest} more"] if rest > 0 else []
    return ", ".join([*names[:_MOST_NAMES], *more])


OLDEST_LANDLOCK = 3
"""The first version that can forbid every way to write. Older ones let a file be emptied."""
_CREATE_RULESET = 444
_VERSION = 1
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
"""Devices that programs write to. Not ``shm``: other programs have their memory there."""


@functools.cache
def landlock_version() -> int:
    """The version of the kernel's interface; 0 if it has none."""
    if not platform.LINUX:
        return 0
    found: int = platform.libc().syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(found, 0)


def wrap_by_landlock(box: Box) -> Wrapped:
    writable = [*box.writable, *(f"/dev/{name}" for name in _DEVICES)]
    found = [os.path.realpath(path) for path in writable if os.path.exists(path)]
    head = (
        sys.executable,
        "-SIc",
        program_text("restrict.py"),
        str(landlock_version()),
        str(len(found)),
        *found,
    )
    return Wrapped(argv=head)
