"""Find an agent's program and its version.

Order: ``program=``, ``corral.toml``, ``PATH``, the managed folder. A program that is a Node script
is started as ``node script``: so a missing Node is known before anything runs. The script of
a managed agent gets Node's compile cache, if it was filled for this Node
(``corral.system.install``).
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec

from corral.agents.spec import AgentSpec
from corral.errors import BrokenInstall, NotInstalled, VersionTooOld
from corral.system import fs, paths
from corral.values import decode_as
from corral.version import __version__

VERSION_SECONDS = 30
_VERSION_ENV = ("PATH", "HOME")
# Kept as text: re compiles them when first needed.
_MACHINE = r"-(linux|darwin|win32)-\w+$"
"""Suffix of the version in npm packages for one platform."""
_NUMBERS = r"(?<!\d)\d+(?:\.\d+)+"

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
    """It is in the agent's own npm package, so it is no wrapper around the agent."""


class _Package(msgspec.Struct):
    """The fields of a ``package.json`` that are read."""

    name: str = ""
    version: str | None = None


def locate(agent: AgentSpec, program: str | None) -> FoundProgram:
    """Find the program, ready to be started. Raises ``NotInstalled``, ``BrokenInstall`` or
    ``VersionTooOld``, each with the command that fixes it."""
    if not agent.programs:
        return FoundProgram("", (), __version__, "built in")
    path, source = _path(agent, agent.program if program is None else program)
    argv = _start(path, agent)
    if not agent.package.tested:
        return FoundProgram(
            path, argv, None, source
        )  # a user's own command: its versions are unknown
    packaged = _packaged_version(argv[-1], agent)
    version = packaged or _reported_version(path, argv, agent)
    oldest = agent.package.minimum
    if version is not None and _parts(version) < _parts(oldest):
        raise VersionTooOld(
            f"{agent.title} {version} at {path} is too old: {oldest} or newer is needed",
            hint=f"Run: {install_command(agent)}   (or npm install -g {agent.package.npm}@latest)",
            agent_version=version,
        )
    return FoundProgram(path, argv, version, source, packaged is not None)


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
    return f"corral agents install {agent.programs[0]}"


def managed_folder(agent: AgentSpec) -> Path:
    return paths.managed() / agent.programs[0] / agent.package.tested


def machine() -> str:
    """The operating system and the processor, as in ``Package.binaries``: ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine()}"


def managed_program(agent: AgentSpec) -> Path:
    folder = managed_folder(agent) / "node_modules"
    if agent.package.binaries:
        return folder / agent.package.binaries.get(machine(), f"none-for-{machine()}")
    return folder / ".bin" / agent.programs[0]


def _path(agent: AgentSpec, program: str | None) -> tuple[str, Source]:
    if program is not None:
        found = fs.find_program(os.path.expanduser(program))
        if found:
            return os.path.abspath(found), "option"
        there = os.path.exists(os.path.expanduser(program))
        raise NotInstalled(
            f"program {program!r} {'is not executable' if there else 'was not found'}",
            hint="Give the path of the program, or omit program to search for it.",
        )
    for name in agent.programs:
        if found := fs.find_program(name):
            return os.path.abspath(found), "PATH"
    managed = managed_program(agent)
    if managed.exists():
        return str(managed), "managed"
    if not agent.package.npm:  # a user's own command
        raise NotInstalled(
            f"no {' or '.join(agent.programs)} is on PATH",
            hint="Check the name: `corral agents list` has the known agents, and any other is a"
            " command that speaks ACP.",
        )
    raise NotInstalled(
        f"{agent.title} was not found: no {' or '.join(agent.programs)} on PATH,"
        " and none was installed by corral",
        hint=f"Run: {install_command(agent)}   (or npm install -g {agent.package.npm})",
    )


def _start(path: str, agent: AgentSpec) -> tuple[str, ...]:
    real = os.path.realpath(path)
    try:
        with open(real, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise BrokenInstall(
            f"{path} cannot be read: {error.strerror}", hint=f"Run: {install_command(agent)}"
        ) from error
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


def _packaged_version(script: str, agent: AgentSpec) -> str | None:
    """The version in the package beside the program: ``--version`` costs two CPU seconds."""
    names = {agent.package.npm}
    for path in agent.package.binaries.values():
        parts = Path(path).parts  # below ``node_modules``; the name of a package may have a scope
        names.add("/".join(parts[:2]) if parts[0].startswith("@") else parts[0])
    for folder in Path(os.path.realpath(script)).parents:
        try:
            package = decode_as((folder / "package.json").read_bytes(), _Package)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if package.name in names and package.version is not None:
            return re.sub(_MACHINE, "", package.version)
    return None


def _reported_version(path: str, argv: tuple[str, ...], agent: AgentSpec) -> str | None:
    """The version from ``--version``, cached by path, size and modification time."""
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


def _parts(version: str) -> tuple[int, ...]:
    found = re.search(_NUMBERS, version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
