"""What a program in the sandbox sees and reaches, and the mounts that make it so.

The file system in the sandbox starts empty. The system's folders are added read-only, the
workspace and other folders of the run writable. Everything else does not exist there: the user's
home, other projects, temporary files, the sockets of daemons.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

import msgspec

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
    "/snap",
    "/sys",
    "/run/current-system",
    "/run/booted-system",
    "/var/lib/ca-certificates",
)
"""Shown read-only, where they exist."""
SECRETS = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
    "/etc/docker",
    "/etc/kubernetes",
)
"""Not shown, although they are in a folder of the system. Only root could read them."""
KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/fs", "/proc/acpi")
"""Settings of the kernel, shown read-only: root could write them without any privilege, and some of
them name a program that the kernel runs outside."""
TOOLCHAINS = (
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".deno/bin",
    ".fnm",
    ".local/bin",
    ".local/pipx",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".local/state/nix",
    ".nix-profile",
    ".nvm",
    ".pixi/bin",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".rye",
    ".sdkman/candidates",
    ".volta",
    "bin",
    "go/bin",
    "anaconda3",
    "micromamba",
    "miniconda3",
    "miniforge3",
)
"""Folders of the home that contain programs and no credentials. Shown read-only."""


class Endpoint(msgspec.Struct, frozen=True):
    """An address outside that a program in the sandbox can connect to."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """On this machine: the program connects to the same port of its own loopback."""
        return self.host in ("127.0.0.1", "localhost", "::1")


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox. All paths are absolute."""

    cwd: str
    writable: tuple[str, ...] = ()
    """Folders and files that can be written."""
    readable: tuple[str, ...] = ()
    """Folders and files that can be read."""
    read_only: tuple[str, ...] = ()
    """Parts of writable folders that can only be read."""
    hidden: tuple[str, ...] = ()
    """Parts of shown folders that are empty inside."""
    absent: tuple[str, ...] = ()
    """Files that do not exist and cannot be made in writable folders."""
    network: bool = False
    """The network of the machine. Without it, only ``endpoints`` can be reached."""
    endpoints: tuple[Endpoint, ...] = ()


class Address(msgspec.Struct, frozen=True):
    """Where an endpoint is found inside."""

    endpoint: Endpoint
    ip: str

    def __str__(self) -> str:
        return f"{self.ip}:{self.endpoint.port}"


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that is ready to start. The caller closes what it holds."""

    argv: tuple[str, ...]
    """To put before the program and its arguments."""
    passed: tuple[int, ...] = ()
    """Descriptors that the child must have, and that the caller closes after the start."""
    control: socket.socket | None = None
    """The listening sockets arrive here."""
    addresses: tuple[Address, ...] = ()


def addresses(box: Box) -> tuple[Address, ...]:
    """Each endpoint gets an address of the loopback network inside. Hosts elsewhere get one each,
    which a hosts file maps their names to, so a program needs no proxy and TLS is end to end."""
    hosts: dict[str, str] = {}
    found: dict[Address, None] = {}
    for endpoint in box.endpoints:
        if endpoint.is_local:
            ip = "127.0.0.1"
        else:
            ip = hosts.setdefault(
                endpoint.host, f"127.0.{1 + len(hosts) // 250}.{1 + len(hosts) % 250}"
            )
        found[Address(endpoint, ip)] = None
    unique: dict[str, Address] = {}
    for address in found:
        unique.setdefault(str(address), address)
    return tuple(unique.values())


def hosts_file(box: Box) -> str:
    lines = ["127.0.0.1 localhost"]
    names = {address.endpoint.host: address.ip for address in addresses(box)}
    lines += [f"{ip} {name}" for name, ip in names.items() if ip != "127.0.0.1"]
    return "\n".join([*lines, ""])


def mounts(box: Box, home: str) -> list[str]:
    """The arguments of bubblewrap that make the file system."""
    steps = _system(home)
    shown = [os.path.join(home, name) for name in TOOLCHAINS]
    readable = [path for path in box.readable if not _is_shown(path, box)]
    steps += _binds("--ro-bind", [*shown, *readable])
    steps += _binds("--bind", box.writable)
    steps += _binds("--ro-bind", box.read_only)
    steps += [(path, _cover(path)) for path in box.hidden if os.path.exists(path)]
    steps += [(path, _cover(path)) for path in box.absent if _is_in(_parent(path), box.writable)]
    steps += _binds("--bind", _parents_to_keep(box))
    # A folder comes before what is in it; what is named last about a path wins.
    steps.sort(key=lambda step: PurePath(step[0]).parts)
    arguments = [argument for _, step in steps for argument in step]
    return [*arguments, "--remount-ro", "/"]


def _system(home: str) -> list[tuple[str, list[str]]]:
    """The system's folders, and empty ones."""
    steps: list[tuple[str, list[str]]] = []
    for path in SYSTEM:
        if os.path.islink(path):
            steps.append((path, ["--symlink", os.readlink(path), path]))
        elif os.path.exists(path):
            steps.append((path, ["--ro-bind", path, path]))
    steps += [(path, _cover(path)) for path in SECRETS if os.path.exists(path)]
    steps += [(path, ["--tmpfs", path]) for path in ("/tmp", "/var/tmp", "/run", home)]  # noqa: S108
    steps.append(("/dev", ["--dev", "/dev"]))
    steps.append(("/proc", ["--proc", "/proc"]))
    steps += [(path, ["--ro-bind", path, path]) for path in KERNEL if os.path.exists(path)]
    return steps


def _binds(kind: str, paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    """A path with links in it is shown under both its names."""
    steps: list[tuple[str, list[str]]] = []
    for path in paths:
        real = os.path.realpath(path)
        if os.path.exists(real) and not _is_system(real):
            steps += [(name, [kind, real, name]) for name in dict.fromkeys((real, path))]
    return steps


def _parents_to_keep(box: Box) -> Iterator[str]:
    """Folders between a writable folder and a protected part of it. A mount cannot be renamed: so
    they stay where they are, and the part under its name."""
    writable = [os.path.realpath(folder) for folder in box.writable]
    for path in (*box.read_only, *box.hidden, *box.absent):
        folder = _parent(path)
        while _is_in(folder, writable) and folder not in writable:
            if os.path.isdir(folder) and not _is_in(folder, (*box.hidden, *box.read_only)):
                yield folder
            folder = os.path.dirname(folder)


def _parent(path: str) -> str:
    return os.path.realpath(os.path.dirname(path))


def _cover(path: str) -> list[str]:
    return ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]


def _is_shown(path: str, box: Box) -> bool:
    """Whether it is in a writable folder and not in a hidden part of it."""
    real = os.path.realpath(path)
    return _is_in(real, box.writable) and not _is_in(real, box.hidden)


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(is_inside(path, os.path.realpath(folder)) for folder in folders)


def _is_system(path: str) -> bool:
    return _is_in(path, SYSTEM)


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def interpreter() -> str:
    """The interpreter itself, not that of a virtual environment, which may be hidden inside."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def interpreter_folders() -> tuple[str, ...]:
    """What Python and corral need to run inside."""
    package = str(Path(__file__).resolve().parents[2])
    folders = (
        sys.base_prefix,
        sys.base_exec_prefix,
        sys.prefix,
        package,
        os.path.dirname(interpreter()),
    )
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))
