"""Which sandbox this machine has, and how a program is started in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from corral.errors import SandboxFailed
from corral.system import platform, version_cache
from corral.system.sandbox import listeners
from corral.system.sandbox.box import Box, Wrapped

if TYPE_CHECKING:
    from corral.system.sandbox.repository_guard import GitNotice, RepositoryGuard

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
    """Corral can open sockets in the network of the sandbox: see ``listeners``."""

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

    def guard(self) -> RepositoryGuard | None:
        """Protects repositories during one start; None if there are none to protect. Blocks. Raises
        ``OSError`` if corral's state cannot be written."""
        if not self.box.guarded:
            return None
        from corral.system.sandbox.repository_guard import RepositoryGuard

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
                from corral.system.sandbox import bubblewrap

                return bubblewrap.wrap(
                    self.support.program, box, home, can_enter=self.support.can_enter
                )
            case "landlock":
                from corral.system.sandbox import landlock

                return landlock.wrap(box)
            case None:
                raise SandboxFailed(f"there is no sandbox: {self.support.reason}")

    def environment(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """The environment of a program in it. Without a network, the user's proxies are left out:
        they cannot be reached from inside, and their URLs may contain passwords."""
        if self.box.network or not self.support.is_complete:
            return given
        from corral.system.sandbox.proxy_variables import replace_proxy

        return replace_proxy(given, self.box)


def find_support(workspace: str | None = None) -> Support:
    """The best sandbox that works on this machine, tried for real."""
    if not platform.LINUX:
        return Support(
            method=None,
            reason="corral has a sandbox on Linux only",
            hint="Run corral on Linux or in a container, with sandbox='off'.",
        )
    from corral.system.sandbox import bubblewrap

    program = bubblewrap.find(workspace)
    support = probe(program) if program else None
    if support is not None and support.method is not None:
        return support
    reason = support.reason if support else "bubblewrap is not installed"
    from corral.system.sandbox import diagnosis, landlock

    return Support(
        method="landlock" if landlock.is_usable() else None,
        program=program or "",
        reason=reason,
        hint=diagnosis.advice(reason) if program else diagnosis.INSTALL,
    )


def probe(program: str) -> Support:
    """Try ``bwrap``. That it works is remembered until the program changes or the machine is
    restarted, for each way to open sockets inside."""
    enters = listeners.is_cheap()
    way = "enter" if enters else "inner"
    key = version_cache.cache_key(program, "probe", way, platform.boot_id(), str(os.geteuid()))
    result = version_cache.get("sandbox", key)
    reason = ""
    if result not in (_WORKS, _ENTERS):
        from corral.system.sandbox import diagnosis

        result = None
        if enters and diagnosis.try_sandbox(program, can_enter=True) is None:
            result = _ENTERS
        elif (reason := diagnosis.try_sandbox(program) or "") == "":
            result = _WORKS
        if result is not None:
            version_cache.put("sandbox", key, result)
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
        from corral.system.sandbox import diagnosis

        version = diagnosis.describe_version(support.program)
        return f"files, network, sockets and processes, by bubblewrap ({support.program}) {version}"
    reason = (
        f"bubblewrap ({support.program}): {support.reason}" if support.program else support.reason
    )
    if support.method is None:
        return f"none. {reason}. {support.hint}"
    from corral.system.sandbox import landlock

    return (
        f"writes only, by Landlock (version {landlock.version()}): reading, network, sockets and"
        f" processes are not limited. {reason}. {support.hint}"
    )
