"""Install an agent: the tested version, from npm or PyPI, with the hashes that corral ships.

It is installed in a managed folder and runs offline afterwards. The folder appears when it is
complete, also if several processes install at the same time.

Node's compile cache
--------------------
Node 22.1 and newer can store the compiled form of a program's modules and read it at the next
start. The entries are code that Node executes without a look at the source, apart from a checksum.
So they are protected like the program itself:

- They are in the folder of the installed agent, which only its owner can read, one set for each
  version of the agent and each Node. They disappear with the version. The sandbox shows the folder
  read-only.
- They are written in one run only, when the agent is installed: outside the sandbox, in an empty
  folder, with a scripted model (``filling_compile_cache``). The cache appears when it is complete.
- Every other run only reads them. Node has no read-only mode: ``enable.cjs`` says how it is done,
  also for root, and without the sandbox.
- The cache is turned on with ``--require``, not with ``NODE_COMPILE_CACHE``, which every program
  that the agent starts would inherit.

Another Node has another cache; ``corral agents install`` fills it. Node ignores an entry that is
damaged or belongs to another source, and compiles the module. A program that the user installed is
started unchanged: corral neither knows when it changes nor may write beside it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from corral._agents.spec import AgentSpec
from corral._system import programs
from corral.errors import BrokenInstall, NotInstalled, StorageFailed

INSTALL_SECONDS = 600


def install(agent: AgentSpec) -> programs.FoundProgram:
    """Install the tested version, unless it is installed. Raises ``NotInstalled`` without the
    installer of the registry or where no build for this machine is known, ``BrokenInstall`` with
    the installer's message, ``StorageFailed`` on a full disk."""
    builds = agent.package.binaries
    if builds and programs.machine() not in builds:
        raise NotInstalled(
            f"corral cannot install {agent.title} on {programs.machine()}:"
            f" it knows builds for {', '.join(sorted(builds))} only",
            hint=f"Install it on PATH yourself: {agent.package.install_by_hand}",
        )
    target = programs.managed_folder(agent)
    program = programs.managed_program(agent)
    if not program.exists():
        command = _pip() if agent.package.registry == "PyPI" else _npm()
        draft = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(3).hex()}")
        for stale in target.parent.glob(f".{target.name}.*"):
            if (
                time.time() - stale.stat().st_mtime > 2 * INSTALL_SECONDS
            ):  # its installer was killed
                shutil.rmtree(stale, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            locks = resources.files("corral._agents").joinpath("locks", agent.programs[0])
            for lock in locks.iterdir():
                (draft / lock.name).write_bytes(lock.read_bytes())
            _run_installer(command, draft, agent)
            try:
                os.rename(draft, target)
            except OSError:
                if not program.exists():  # else another process installed the same version first
                    raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StorageFailed(
                f"cannot write {target}: {error.strerror}",
                hint="Up to 250 MB are needed." if full else "Set CORRAL_HOME elsewhere.",
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return programs.locate(agent, str(program))


def _npm() -> list[str]:
    """The command that installs what ``package-lock.json`` names, in ``node_modules``."""
    if shutil.which("node") is None:
        raise programs.no_node("Node.js 20 or newer is needed, and no node is on PATH")
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is needed, and is not on PATH", hint="Install npm and try again.")
    return [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]


def _pip() -> list[str]:
    """The command that installs what ``requirements.txt`` names, in ``lib``. Not every environment
    has pip: those that uv makes have none."""
    target = ["--target", programs.PACKAGES["PyPI"], "-r", "requirements.txt"]
    flags = ["install", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:", *target]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", *flags]
    if uv := shutil.which("uv"):
        return [uv, "pip", *flags, "--python", sys.executable, "--compile-bytecode"]
    raise NotInstalled(
        f"pip is needed in the environment of {sys.executable}, or uv on PATH",
        hint="Install one of them and try again.",
    )


def _run_installer(command: list[str], folder: Path, agent: AgentSpec) -> None:
    registry = agent.package.registry
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokenInstall(
            f"{registry}: the installation took longer than {INSTALL_SECONDS} s",
            hint="Check the network and try again.",
        ) from error
    if done.returncode != 0:
        message = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        if "ENOSPC" in message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise BrokenInstall(
            f"{agent.package.name} {agent.package.tested} could not be installed from {registry}:"
            f"\n{message[-2000:]}",
            hint=f"Check the network and the settings of {os.path.basename(command[0])}, then try"
            " again.",
        )


OLDEST_NODE = (22, 1)
"""The first Node that has ``module.enableCompileCache``."""
STALE_SECONDS = 3600
_ENTRIES = "entries"

State = Literal["on", "not filled", "Node is too old", "not installed by corral"]


class CompileCache(msgspec.Struct, frozen=True):
    """The compile cache of a Node program."""

    state: State
    node: str
    """The version of Node."""

    def describe(self) -> str:
        """For a person."""
        oldest = ".".join(map(str, OLDEST_NODE))
        reason = {
            "on": "on",
            "not filled": "off: run `corral agents install` to fill it for this Node",
            "Node is too old": f"off: Node {oldest} or newer is needed",
            "not installed by corral": "off: the program was not installed by corral",
        }[self.state]
        return f"{reason} (Node {self.node})"


def find_compile_cache(found: programs.FoundProgram) -> CompileCache | None:
    """The state of the cache of a program; None if it is no Node script."""
    if len(found.argv) < 2 or found.argv[0] == sys.executable:
        return None
    node, script = found.argv[0], found.argv[-1]
    try:
        done = subprocess.run(
            [node, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=programs.VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokenInstall(f"{node} --version failed: {error}") from error
    version = done.stdout.decode("utf-8", "replace").strip().removeprefix("v")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    state: State = "not filled" if numbers >= OLDEST_NODE else "Node is too old"
    if "--require" in found.argv:
        state = "on"
    elif programs.compile_cache(script, node) is None:
        state = "not installed by corral"
    return CompileCache(state, version)


@contextlib.contextmanager
def filling_compile_cache(agent: AgentSpec, found: programs.FoundProgram) -> Generator[str]:
    """A program that starts the agent and fills its cache. The cache is used from the end of the
    block on; if the block raises, nothing stays. Raises ``BrokenInstall`` if Node wrote nothing."""
    node, script = found.argv
    folder = programs.compile_cache(script, node)
    if folder is None:
        raise ValueError(f"{found.path} was not installed by corral")
    target = Path(folder)
    target.parent.mkdir(mode=0o700, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(3).hex()}")
    draft.mkdir(mode=0o700)
    try:
        (draft / _ENTRIES).mkdir(mode=0o700)
        fill, start, package = draft / "fill.cjs", draft / "start", draft / "package.json"
        fill.write_bytes(_node_file(fill.name))
        # With it, the version need not be asked for.
        known = {"name": agent.package.name, "version": found.version}
        package.write_bytes(msgspec.json.encode(known))
        command = shlex.join((node, "--require", str(fill), script))
        start.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        start.chmod(0o700)
        yield str(start)
        if not any((draft / _ENTRIES).glob("*/*")):
            raise BrokenInstall(f"Node wrote no compile cache for {found.path}")
        for each in (fill, start, package):
            each.unlink()
        (draft / programs.ENABLE_CACHE).write_bytes(_node_file(programs.ENABLE_CACHE))
        with contextlib.suppress(OSError):  # another process filled it first
            draft.rename(target)
        # Caches of other Nodes, and what killed processes left.
        for each in target.parent.iterdir():
            is_draft = each.name.startswith(".")
            with contextlib.suppress(OSError):
                is_new = time.time() - each.stat().st_mtime < STALE_SECONDS
                if each != target and not (is_draft and is_new):
                    shutil.rmtree(each, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):
            target.parent.rmdir()  # if nothing is in it


def _node_file(name: str) -> bytes:
    return resources.files("corral._system").joinpath("node_files", name).read_bytes()
