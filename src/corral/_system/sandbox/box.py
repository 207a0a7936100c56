"""What a program in the sandbox sees and reaches, and the mounts that make it so.

The file system in the sandbox starts empty. The system's folders are added read-only, the
workspace and other folders of the run writable. Everything else does not exist there: the user's
home, other projects, temporary files, the sockets of daemons.

The sandbox shows nothing of the home but tool chains and what the caller names. Should a path in
which programs keep logins, keys and passwords be in a shown folder all the same, it is covered
(``credentials_to_cover``).
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from corral._core.host_rules import HostRule
from corral._system import fs, paths
from corral._system.paths import is_inside

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder of corral's modules."""
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
_BELOW_SYSTEM = tuple(folder + "/" for folder in SYSTEM)
_PROJECT_FOLDERS = ("/opt", "/usr/src", "/usr/local/src")
"""Folders of the system that contain projects, too."""
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


class SandboxEndpoint(msgspec.Struct, frozen=True):
    """An address outside that a program in the sandbox can connect to."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """On this machine: the program connects to the same port of its own loopback."""
        return self.host in ("127.0.0.1", "localhost", "::1")


class Bind(msgspec.Struct, frozen=True):
    """A folder that is shown under another name."""

    source: str
    target: str


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
    guarded: tuple[str, ...] = ()
    """Writable folders of the user, in which no repository may make git start programs: those that
    exist can only be read, and afterwards what is new or changed is checked
    (``repository_guard``)."""
    can_change_git: bool = False
    """The program may change the repositories in ``guarded``: that is only reported."""
    binds: tuple[Bind, ...] = ()
    """Writable folders under other names. Only bubblewrap has them."""
    network: bool = False
    """The network of the machine. Without it, only ``endpoints`` can be reached."""
    endpoints: tuple[SandboxEndpoint, ...] = ()
    hosts: tuple[HostRule, ...] = ()
    """Further hosts, which programs reach through a proxy."""


PROXY = SandboxEndpoint("proxy.corral.internal", 3128)
"""Where programs in the sandbox find the proxy to ``Box.hosts``. It is corral itself."""


class InnerAddress(msgspec.Struct, frozen=True):
    """Where an endpoint is found inside."""

    endpoint: SandboxEndpoint
    ip: str

    def __str__(self) -> str:
        return f"{self.ip}:{self.endpoint.port}"


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that is ready to start. The caller closes what it holds."""

    argv: tuple[str, ...]
    """To put before the program and its arguments."""
    passed: tuple[int, ...] = ()
    """Descriptors that the child must have, and that the caller closes after the start."""
    is_container: bool = False
    """The command starts the program as a child, and the kernel ends everything inside when the
    command or corral ends. Otherwise the command executes the program."""
    control: socket.socket | None = None
    """The listening sockets arrive here; or, with ``is_entered``, what ``gateway`` needs to open
    them, and the command waits for one byte."""
    is_entered: bool = False
    addresses: tuple[InnerAddress, ...] = ()


def addresses(box: Box) -> tuple[InnerAddress, ...]:
    """Each endpoint gets an address of the loopback network inside. Hosts elsewhere get one each,
    which a hosts file maps their names to, so a program needs no proxy and TLS is end to end."""
    hosts: dict[str, str] = {}
    found: dict[InnerAddress, None] = {}
    for endpoint in (*((PROXY,) if box.hosts else ()), *box.endpoints):
        if endpoint.is_local:
            ip = "127.0.0.1"
        else:
            ip = hosts.setdefault(
                endpoint.host, f"127.0.{1 + len(hosts) // 250}.{1 + len(hosts) % 250}"
            )
        found[InnerAddress(endpoint, ip)] = None
    unique: dict[str, InnerAddress] = {}
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
    tools = [os.path.join(home, name) for name in TOOLCHAINS]
    named = {*tools, *box.readable, *box.writable, *box.read_only, *box.hidden}
    real = {path: fs.real_path(path) for path in named if os.path.exists(path)}
    inside = _Folders(
        writable=[real[path] for path in box.writable if path in real],
        read_only=[real[path] for path in box.read_only if path in real],
        hidden=[real[path] for path in box.hidden if path in real],
    )
    steps = _system(home)
    steps.update(_binds("--ro-bind", tools, real))
    steps.update(_binds("--ro-bind", filter(inside.needs_mount, box.readable), real))
    steps.update(_binds("--bind", box.writable, real))
    steps.update(inside.protect(box.absent))
    steps.update({bind.target: ("--bind", bind.source, bind.target) for bind in box.binds})
    steps.update(_hide(inside.hidden, dict(steps)))
    # A folder comes before what is in it.
    ordered = sorted(steps.items(), key=lambda step: step[0].split("/"))
    arguments = [argument for step in _needed(ordered) for argument in step]
    return [*arguments, "--remount-ro", "/"]


_SHOWS = ("--bind", "--ro-bind")
_Step: TypeAlias = tuple[str, ...]
"""An option of bubblewrap and its values."""


def _system(home: str) -> dict[str, _Step]:
    """The system's folders, and empty ones."""
    empty = ("/tmp", "/var/tmp", "/run")  # noqa: S108
    steps: dict[str, _Step] = {path: ("--tmpfs", path) for path in empty}
    if home != "/" and not is_system(home):
        steps[home] = ("--tmpfs", home)
    for path in SYSTEM:
        if os.path.islink(path):
            steps[path] = ("--symlink", os.readlink(path), path)
            real = os.path.realpath(path)
            if os.path.exists(real) and not is_system(real):
                steps[path] = ("--ro-bind", real, path)
        elif os.path.exists(path):
            steps[path] = ("--ro-bind", path, path)
    if os.geteuid() == 0:
        steps.update({path: _cover(path) for path in SECRETS if os.path.exists(path)})
    steps["/dev"] = ("--dev", "/dev")
    steps["/proc"] = ("--proc", "/proc")
    # The process that ends the sandbox. Its memory could be written, so that it never ends.
    steps["/proc/1"] = ("--tmpfs", "/proc/1")
    steps.update({path: ("--ro-bind", path, path) for path in KERNEL if os.path.exists(path)})
    return steps


def _binds(kind: str, paths: Iterable[str], real: Mapping[str, str]) -> Iterator[tuple[str, _Step]]:
    """A path with links in it is shown under both its names. ``real``: without links, for
    paths that exist."""
    for path in paths:
        if path in real and not is_system(real[path]):
            yield real[path], (kind, real[path], real[path])
            yield path, (kind, real[path], path)


class _Folders(msgspec.Struct, frozen=True, kw_only=True):
    """Folders of a box that exist, without links."""

    writable: list[str]
    read_only: list[str]
    hidden: list[str]

    def needs_mount(self, path: str) -> bool:
        """Whether it is not in a writable folder, or in a hidden part of one."""
        real = fs.real_path(path)
        return not _is_in(real, self.writable) or _is_in(real, self.hidden)

    def protect(self, absent: Iterable[str]) -> Iterator[tuple[str, _Step]]:
        """Parts of writable folders. A link there may lead anywhere, and what it leads to is not
        shown."""
        kept = [path for path in absent if _is_in(_parent(path), self.writable)]
        for path in self.read_only:
            if _is_in(path, self.writable):
                yield path, ("--ro-bind", path, path)
        for path in kept:
            yield path, _cover(path)
        # Folders between a writable folder and a protected part of it. A mount cannot be renamed:
        # so they stay where they are, and the part under its name.
        for path in (*self.read_only, *self.hidden, *kept):
            folder = _parent(path)
            while _is_in(folder, self.writable) and folder not in self.writable:
                if os.path.isdir(folder) and not _is_in(folder, (*self.hidden, *self.read_only)):
                    yield folder, ("--bind", folder, folder)
                folder = os.path.dirname(folder)


def _hide(hidden: Iterable[str], steps: Mapping[str, _Step]) -> Iterator[tuple[str, _Step]]:
    """Cover what these steps show of hidden paths, under every name. What they do not show is not
    covered: a mount can be seen, with its path."""
    for target, step in steps.items():
        if step[0] not in _SHOWS or step[1] == os.devnull:
            continue
        for path in hidden:
            if not is_inside(path, step[1]):
                continue
            name = os.path.normpath(os.path.join(target, os.path.relpath(path, step[1])))
            above = name
            while above not in steps and above != "/":
                above = os.path.dirname(above)
            if above == target:
                yield name, (*_cover(path)[:-1], name)


def _parent(path: str) -> str:
    return fs.real_path(os.path.dirname(path))


def _needed(steps: Iterable[tuple[str, _Step]]) -> Iterator[_Step]:
    """Without what a folder above shows in the same way: each mount takes time."""
    above: list[tuple[str, _Step]] = []
    for path, step in steps:
        while above and not is_inside(path, above[-1][0]):
            above.pop()
        if not above or not _shows_itself(step) or not _shows_itself(above[-1][1]):
            above.append((path, step))
            yield step


def _shows_itself(step: _Step) -> bool:
    return step[0] == "--ro-bind" and step[1] == step[2]


def _cover(path: str) -> _Step:
    return ("--tmpfs", path) if os.path.isdir(path) else ("--ro-bind", "/dev/null", path)


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(is_inside(path, folder) for folder in folders)


def is_system(real: str) -> bool:
    """Whether it is a folder of the system, or in one, so it can only be read. ``real`` has no
    links in it. A folder of the system that is a link leads to another one."""
    if not (real + "/").startswith(_BELOW_SYSTEM):
        return False
    return not any(real != folder and is_inside(real, folder) for folder in _PROJECT_FOLDERS)


@functools.cache
def program_text(name: str) -> str:
    """The source of a program of this package that is passed to Python as text."""
    # importlib.resources takes longer to import than a sandbox takes to build.
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


@functools.cache
def interpreter() -> str:
    """The interpreter itself, not that of a virtual environment, which may be hidden inside."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def interpreter_folders() -> tuple[str, ...]:
    """What Python and corral need to run inside."""
    folders = (
        sys.base_prefix,
        sys.base_exec_prefix,
        sys.prefix,
        PACKAGE,
        os.path.dirname(interpreter()),
    )
    return tuple(dict.fromkeys(fs.real_path(folder) for folder in folders))


_URLS = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_OF_TOOLS = ("npm_config_proxy", "npm_config_https_proxy")
"""Settings of npm, which win over the common variables."""
_OTHERS = ("FTP_PROXY", "PIP_PROXY", "CARGO_HTTP_PROXY", "NO_PROXY", "npm_config_noproxy")


def replace_proxy(environ: Mapping[str, str], box: Box) -> dict[str, str]:
    """The environment without the user's proxies; with corral's if the box has hosts. Programs do
    not use it for the endpoints of the box: these have addresses inside."""
    known = {name.lower() for name in (*_URLS, *_OF_TOOLS, *_OTHERS)}
    values = {name: value for name, value in environ.items() if name.lower() not in known}
    found = next((each for each in addresses(box) if each.endpoint == PROXY), None)
    if found is None:
        return values
    url = f"http://{found}"
    for name in _URLS:
        values |= {name: url, name.lower(): url}
    hosts = (endpoint.host for endpoint in box.endpoints)
    direct = ",".join(dict.fromkeys(("localhost", "127.0.0.1", "::1", *hosts)))
    values |= dict.fromkeys(("NO_PROXY", "no_proxy", "npm_config_noproxy"), direct)
    values |= dict.fromkeys(_OF_TOOLS, url)
    # Node.js obeys the common variables only with this one.
    return {**values, "NODE_USE_ENV_PROXY": "1"}


CREDENTIALS = (
    ".ssh",
    ".gnupg",
    ".pki",
    ".password-store",
    ".netrc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".vault-token",
    ".aws",
    ".azure",
    ".oci",
    ".kube",
    ".docker",
    ".terraform.d",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/pip",
    ".config/rclone",
    ".config/containers",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/uv/credentials",
    ".local/share/containers",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    "Library/Keychains",
    "Library/Cookies",
    "Library/Application Support/Google/Chrome",
    "Library/Application Support/Firefox",
)
"""Folders and files. Those of agents are in their specs."""
_LIBRARIES = (".local/lib", ".local/lib64", ".local/libexec")
"""Libraries of programs, without credentials."""


def credentials_to_cover(
    home: str, logins: Callable[[], Iterable[str]], shown: Iterable[str]
) -> Iterator[str]:
    """The paths of credentials that are in a shown folder. One that is itself shown, or contains
    what is shown, was named by the caller. ``logins``: the files of agents. It is called only if
    one of them can be in a shown folder."""
    folders = [fs.real_path(folder) for folder in dict.fromkeys(shown)]
    may_have = _may_have_logins(home, filter(os.path.isdir, folders))
    names = [*CREDENTIALS, *(logins() if may_have else ())]
    for name in dict.fromkeys(names):
        file = os.path.join(home, name)
        if os.path.exists(file):
            path = fs.real_path(file)
            is_named = any(is_inside(folder, path) for folder in folders)
            if not is_named and any(is_inside(path, folder) for folder in folders):
                yield path


def _may_have_logins(home: str, folders: Iterable[str]) -> bool:
    """Whether a folder is in a hidden entry of the home, or contains one: agents keep their logins
    there."""
    try:
        with os.scandir(os.path.realpath(home)) as scanned:
            entries = [
                os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                for entry in scanned
                if entry.name.startswith(".")
            ]
    except OSError:
        return True
    tools = (os.path.join(home, name) for name in (*TOOLCHAINS, *_LIBRARIES))
    without = [fs.real_path(path) for path in (str(paths.home()), *filter(os.path.exists, tools))]
    others = [path for path in folders if not any(is_inside(path, each) for each in without)]
    pairs = ((path, entry) for path in others for entry in entries)
    return any(is_inside(path, entry) or is_inside(entry, path) for path, entry in pairs)
