"""What a sandbox enforces: a row for each way out of the workspace.

The rows are derived from what the sandbox is built of. For bubblewrap that is the list of its
arguments: a folder that is mounted is not hidden, whatever a document says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from corral.policy import SandboxCell, SandboxRow
from corral.system.sandbox import bubblewrap, seccomp
from corral.system.sandbox.box import Box, is_inside
from corral.system.sandbox.sandbox import Support

_MOUNTS = {
    "--bind": "writable",
    "--ro-bind": "readable",
    "--ro-bind-data": "empty",
    "--symlink": "empty",
}
_EMPTY = ("--tmpfs", "--dev", "--proc")
_NO_FILTER = "corral has no filter of system calls for this processor"
_MOST_NAMES = 3


def rows(
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
    sockets = "no Unix socket can be opened" if seccomp.is_supported() else _NO_FILTER
    return (
        _denied("read outside", "the system's programs and added folders can be read", not seen),
        _denied("write outside", _more_folders(named, cwd), not elsewhere),
        _inside(mounts.kind(cwd) == "writable"),
        _network(box, is_limited="--unshare-net" in options),
        _denied("local sockets", sockets, seccomp.is_supported()),
        _denied("other processes", "they cannot be seen", "--unshare-pid" in options),
        _denied("credentials", _names(shown) or "none but the agent's own", not shown),
    )


def _denied(cell: SandboxCell, note: str, is_enforced: bool) -> SandboxRow:
    return SandboxRow(cell, "deny", "sandbox" if is_enforced else "impossible", note)


def _inside(can_write: bool) -> SandboxRow:
    return SandboxRow("write inside", "allow") if can_write else _denied("write inside", "", True)


def _network(box: Box, *, is_limited: bool) -> SandboxRow:
    if box.network:
        return SandboxRow("network", "allow")
    named = (*(endpoint.host for endpoint in box.endpoints), *map(str, box.hosts))
    hosts = list(dict.fromkeys(named))
    reached = _names(hosts) or "the model and the given tool servers"
    return _denied("network", f"only {reached} can be reached", is_limited)


def _more_folders(folders: Sequence[str], cwd: str) -> str:
    more = [path for path in folders if not is_inside(path, cwd)]
    return f"also writable: {_names(more)}" if more else ""


def _names(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    more = [f"{rest} more"] if rest > 0 else []
    return ", ".join([*names[:_MOST_NAMES], *more])
