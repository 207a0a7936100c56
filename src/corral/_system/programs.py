"""Find an agent's program, and find out which program and version it is.

Order: ``program=``, ``corral.toml``, ``PATH``, the managed folder. If the program on ``PATH``
cannot be used, the managed one is. A program that is a Node script is started as ``node script``:
so a missing Node is known before anything runs. The script of a managed agent gets Node's compile
cache, if it was filled for this Node (``corral._system.install``).

A program of a PyPI package is started by its bridge (``Package.bridge``), with the packages beside
it and this Python. They have compiled parts, so each Python has its own managed folder.

The version is that of the agent's package, if the program is in it. Otherwise a program that
speaks only the Agent Client Protocol is asked by ``initialize``, because many know no
``--version``, and any other with ``--version``. The version of a user's own command is what it
reported to its last run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Literal

import msgspec

from corral._agents.spec import AcpTransport, AgentSpec
from corral._system import fs, paths
from corral.errors import BrokenInstall, CorralError, NotInstalled, VersionTooOld
from corral.values import decode_as
from corral.version import __version__

if TYPE_CHECKING:
    from corral._protocol.acp.frames import InitializeResult

VERSION_SECONDS = 30
LONGEST_REPLY = 1_048_576
_VERSION_ENV = ("PATH", "HOME")
# Kept as text: re compiles them when first needed.
_MACHINE = r"-(linux|darwin|win32)-\w+$"
"""Suffix of the version in npm packages for one platform."""
_NUMBERS = r"(?<!\d)\d+(?:\.\d+)+"

PACKAGES = {"npm": "node_modules", "PyPI": "lib"}
"""Registry → the folder of its packages, in that of an installed agent."""

ENABLE_CACHE = "enable.cjs"
"""The file of a compile cache that Node loads before the agent's script."""

Source = Literal["option", "PATH", "managed", "built in"]


class FoundProgram(msgspec.Struct, frozen=True):
    path: str
    """The program as it was found."""
    argv: tuple[str, ...]
    """How to start it."""
    version: str | None
    source: Source
    packaged: bool = False
    """It is in the agent's own package, so it is no wrapper around the agent."""


class _InstalledPackage(msgspec.Struct):
    """The fields of a ``package.json`` that are read."""

    name: str = ""
    version: str | None = None


def locate(agent: AgentSpec, program: str | None) -> FoundProgram:
    """Find the program, ready to be started. Raises ``NotInstalled``, ``BrokenInstall`` or
    ``VersionTooOld``, each with the command that fixes it."""
    if not agent.programs:
        return FoundProgram("", (), __version__, "built in")
    path, source = _path(agent, agent.program if program is None else program)
    try:
        return _check(agent, path, source)
    except (NotInstalled, VersionTooOld):
        managed = managed_program(agent)
        if source != "PATH" or not managed.exists():
            raise
        return _check(agent, str(managed), "managed")


def _check(agent: AgentSpec, path: str, source: Source) -> FoundProgram:
    argv = _start(path, agent)
    if not agent.package.tested:  # a user's own command: any version may be used
        version = paths.known_answer("versions", paths.answer_key(path, agent.name))
        return FoundProgram(path, argv, version, source)
    packaged = _packaged_version(argv[-1], agent)
    version = packaged or _reported_version(path, argv, agent)
    if agent.package.place(version) == "older":
        oldest = agent.package.minimum
        raise VersionTooOld(
            f"{agent.title} {version} at {path} is too old: {oldest} or newer is needed",
            hint=f"Run: {install_command(agent)}, or {agent.package.install_by_hand}",
            agent_version=version,
        )
    return FoundProgram(path, argv, version, source, packaged is not None)


def remember_version(agent: AgentSpec, program: FoundProgram, version: str) -> None:
    """Remember what a user's own command reported in its handshake."""
    if program.version != version and not agent.package.tested:
        paths.remember_answer("versions", paths.answer_key(program.path, agent.name), version)


def is_namesake(agent: AgentSpec) -> bool:
    """Whether ``agent.program`` has the name of the agent's program but is another one that speaks
    the Agent Client Protocol. If it cannot be found out, ``locate`` raises the reason."""
    if agent.program is None or not _speaks_only_acp(agent):
        return False
    try:
        path, _ = _path(agent, agent.program)
        argv = _start(path, agent)
        known = _packaged_version(argv[-1], agent) is not None
        return not known and _ask_by_acp(path, argv, agent)[0] != agent.package.name
    except NotInstalled:
        return False


def helpers(agent: AgentSpec, path: str | None) -> dict[str, str]:
    """Programs that the agent starts itself and that are on PATH or in the package of a managed
    agent: name → absolute path."""
    found: dict[str, str] = {}
    for name, patterns in agent.helpers.items():
        places = (place for each in patterns for place in sorted(paths.managed().glob(each)))
        managed = (str(place) for place in places if os.access(place, os.X_OK))
        program = fs.find_program(name, path) or next(managed, None)
        if program is not None:
            found[name] = os.path.abspath(program)
    return found


def install_command(agent: AgentSpec) -> str:
    name, *_ = (*agent.aliases, agent.name)
    return f"corral agents install {name}"


def managed_folder(agent: AgentSpec) -> Path:
    python = f"-{sys.implementation.cache_tag}" if agent.package.registry == "PyPI" else ""
    return paths.managed() / agent.programs[0] / f"{agent.package.tested}{python}"


def machine() -> str:
    """The operating system and the processor, as in ``Package.binaries``: ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine()}"


def managed_program(agent: AgentSpec) -> Path:
    folder = managed_folder(agent) / PACKAGES[agent.package.registry]
    if agent.package.binaries:
        return folder / agent.package.binaries.get(machine(), f"none-for-{machine()}")
    return folder / ".bin" / agent.programs[0]


def is_managed(agent: AgentSpec, program: FoundProgram) -> bool:
    """Whether corral installed it: the tested version, with the hashes that corral ships."""
    folder = os.path.realpath(managed_folder(agent))
    return paths.is_inside(os.path.realpath(program.argv[-1]), folder)


def _path(agent: AgentSpec, program: str | None) -> tuple[str, Source]:
    if program is not None:
        found = fs.find_program(os.path.expanduser(program))
        if found:
            return os.path.abspath(found), "option"
        raise _unusable(program, "Give the path of the program, or omit program to search for it.")
    for name in agent.programs:
        if found := fs.find_program(name):
            return os.path.abspath(found), "PATH"
    managed = managed_program(agent)
    if managed.exists():
        return str(managed), "managed"
    if not agent.package.name:  # a user's own command
        name = agent.programs[0]
        if os.sep in name:
            raise _unusable(name, "Give the path of a program that speaks ACP.")
        raise NotInstalled(
            f"no {name} is on PATH",
            hint="Check the name: `corral agents list` has the known agents, and any other is a"
            " command that speaks ACP.",
        )
    raise NotInstalled(
        f"{agent.title} was not found: no {' or '.join(agent.programs)} on PATH,"
        " and none was installed by corral",
        hint=f"Run: {install_command(agent)}, or {agent.package.install_by_hand}",
    )


def _unusable(path: str, hint: str) -> NotInstalled:
    there = os.path.exists(os.path.expanduser(path))
    why = "is not executable" if there else "was not found"
    return NotInstalled(f"program {path!r} {why}", hint=hint)


def _start(path: str, agent: AgentSpec) -> tuple[str, ...]:
    real = os.path.realpath(path)
    try:
        with open(real, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        hint = f"Run: {install_command(agent)}" if agent.package.name else None
        raise BrokenInstall(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    below = agent.package.binaries.get(machine(), "")
    packages = real.removesuffix(f"/{below}")
    is_packaged = packages != real and _pypi_version(packages, agent) is not None
    if agent.package.bridge and is_packaged:
        bridge = importlib.util.find_spec(agent.package.bridge)
        if bridge is None or bridge.origin is None:
            raise BrokenInstall(f"corral is not complete: it has no {agent.package.bridge}")
        # Without -S, the packages of corral's own environment would be found too.
        return (sys.executable, "-I", "-S", bridge.origin, packages)
    if not (head.startswith(b"#!") and b"node" in head.split(b"\n", 1)[0]):
        return (path,)
    node = fs.find_program("node")
    if node is None:
        raise no_node(f"{agent.title} needs Node.js 20 or newer, and no node is on PATH")
    folder = compile_cache(real, node)
    enable = os.path.join(folder or "", ENABLE_CACHE)
    if folder and os.path.exists(enable):
        return (node, "--require", enable, real)
    return (node, real)


def no_node(message: str) -> NotInstalled:
    hint = "Install Node.js (nodejs.org, or your system's packages) and try again."
    return NotInstalled(message, hint=hint)


def compile_cache(script: str, node: str) -> str | None:
    """The folder of Node's compile cache for a script that corral installed: one for each agent,
    version and Node. It may not exist. None for the script of another program."""
    folder, found, _ = script.partition("/node_modules/")
    if not found or not folder.startswith(os.path.realpath(paths.managed()) + os.sep):
        return None
    info = os.stat(node)
    return os.path.join(folder, "compile-cache", f"{info.st_size}-{info.st_mtime_ns}")


def _pypi_version(packages: str, agent: AgentSpec) -> str | None:
    """The version of the agent's PyPI package, if it is installed in this folder."""
    start = f"{agent.package.name.replace('-', '_')}-"
    found = Path(packages).glob(f"{start}*.dist-info")
    return next((info.stem.removeprefix(start) for info in found), None)


def _packaged_version(script: str, agent: AgentSpec) -> str | None:
    """The version in the package beside the program: ``--version`` costs two CPU seconds."""
    found = _own_package(script, agent)
    return None if found is None else found[1]


def package_folder(script: str, agent: AgentSpec) -> Path | None:
    """The folder of the agent's own package, if the program is in it."""
    found = _own_package(script, agent)
    return None if found is None else found[0]


def binary_packages(agent: AgentSpec) -> set[str]:
    """The names of the npm packages with the agent's program for one kind of machine."""
    names: set[str] = set()
    for path in agent.package.binaries.values():
        parts = Path(path).parts  # below ``node_modules``; the name of a package may have a scope
        names.add("/".join(parts[:2]) if parts[0].startswith("@") else parts[0])
    return names


def _own_package(script: str, agent: AgentSpec) -> tuple[Path, str] | None:
    """The folder and the version of the agent's own package, if the program is in it. ``script`` is
    the end of ``FoundProgram.argv``."""
    if agent.package.registry == "PyPI" and (version := _pypi_version(script, agent)):
        return Path(script, agent.package.binaries[machine()]).parents[1], version
    names = {agent.package.name, *binary_packages(agent)}
    for folder in Path(os.path.realpath(script)).parents:
        try:
            package = decode_as((folder / "package.json").read_bytes(), _InstalledPackage)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if package.name in names and package.version is not None:
            return folder, re.sub(_MACHINE, "", package.version)
    return None


def _reported_version(path: str, argv: tuple[str, ...], agent: AgentSpec) -> str | None:
    """The version that the program reports, cached by path, size and modification time."""
    if _speaks_only_acp(agent):
        name, version = _ask_by_acp(path, argv, agent)
        if name != agent.package.name:
            raise NotInstalled(
                f"{path} is {name} {version}, and {agent.name} needs {agent.package.name}",
                hint=f"Run: {install_command(agent)}   (or use this program as it is, by its path:"
                f" --agent {path})",
            )
        return version
    key = paths.answer_key(argv[-1])
    known = paths.known_answer("versions", key)
    if known is not None:
        return known
    try:
        completed = subprocess.run(
            [*argv, "--version"],
            env={name: os.environ[name] for name in _VERSION_ENV if name in os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokenInstall(
            f"{path} --version failed: {error}", hint=f"Run: {install_command(agent)}"
        ) from error
    found = re.search(_NUMBERS, completed.stdout.decode("utf-8", "replace"))
    if completed.returncode != 0 or not found:
        raise BrokenInstall(
            f"{path} --version failed (exit {completed.returncode})",
            hint=f"Run: {install_command(agent)}",
            stderr=completed.stderr.decode("utf-8", "replace")[-2000:],
        )
    paths.remember_answer("versions", key, found[0])
    return found[0]


def _speaks_only_acp(agent: AgentSpec) -> bool:
    """Whether the program needs no argument to speak the Agent Client Protocol."""
    return isinstance(agent.transport, AcpTransport) and not agent.transport.arguments


def _ask_by_acp(path: str, argv: tuple[str, ...], agent: AgentSpec) -> tuple[str, str]:
    """The name and the version in the program's reply to ``initialize``, cached as above. It is
    asked in an empty folder, which is also its home: no settings of the user or of a repository
    count. Raises ``BrokenInstall``."""
    key = paths.answer_key(argv[-1], "initialize")
    if known := paths.known_answer("versions", key):
        name, _, version = known.partition("\n")
        return name, version
    with (
        TemporaryDirectory(prefix="corral-ask-") as folder,
        TemporaryFile() as log,
    ):
        env = {"HOME": folder, "TMPDIR": folder, "PATH": os.environ.get("PATH", os.defpath)}
        try:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise BrokenInstall(f"{path} cannot be started: {error}") from error
        end = functools.partial(os.killpg, process.pid, signal.SIGKILL)
        limit = threading.Timer(VERSION_SECONDS, end)
        limit.start()
        try:
            reply = _initialize(process)
        finally:
            limit.cancel()
            with suppress(ProcessLookupError):
                end()
            process.communicate()
        log.seek(0)
        stderr = log.read(2000).decode("utf-8", "replace")
    if not reply.name or not reply.version:
        raise BrokenInstall(
            f"{path} did not answer initialize with its name and version",
            hint=f"Run: {install_command(agent)}",
            stderr=stderr,
        )
    paths.remember_answer("versions", key, f"{reply.name}\n{reply.version}")
    return reply.name, reply.version


def _initialize(process: subprocess.Popen[bytes]) -> InitializeResult:
    """The reply; an empty one if the program ended, or was ended, before."""
    from corral._protocol.acp.client import AcpClient, CallFinished, Offer, read_initialize
    from corral._protocol.acp.frames import InitializeResult

    client = AcpClient()
    _, question = client.initialize(Offer(), version=__version__)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    with suppress(BrokenPipeError):
        process.stdin.write(question)
        process.stdin.flush()
    while line := process.stdout.readline(LONGEST_REPLY):
        for command in client.receive(line):
            if isinstance(command, CallFinished):
                with suppress(CorralError):
                    return read_initialize(command.result)
    return InitializeResult()
