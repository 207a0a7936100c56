"""An environment of harbor that is corral's sandbox on this machine, without a container.

Theory of operation
-------------------
The file system of a trial is a private folder in corral's state, one sub-folder for each name that
a task uses: the working directory (``workdir`` of the task, ``/app`` if it has none), ``/tests``,
``/logs``, ``/solution``, ``/tmp`` and ``/runtime``. They stay until ``stop``. Everything else is
this machine's, and can only be read or is not there at all (``corral._system.sandbox.box``).

Each ``exec`` makes a sandbox with these folders under their names. When it returns, no
process of it is left: a command cannot leave a server for the next one. So nothing runs while files
are copied in or out, and nothing of the agent while the verifier works. The network of the sandbox
is that of harbor's policy at that moment.

A trial that is cancelled stops its command, and ``stop`` removes the folder. If harbor is killed,
the kernel ends its sandboxes, and the next environment removes the folder: nobody holds its lock.

A task that needs an image is refused by ``start``, which fails this trial only. An error of
``__init__`` would cancel all trials of the job.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy
from msgspec.structs import replace

from corral._pipelines.execution.node_options import BUILT_IN
from corral._pipelines.execution.shell import run_shell_command
from corral._pipelines.execution.verifier import copy_into
from corral._sessions import sandbox
from corral._system import fs, paths
from corral._system.git.worktree import name_part
from corral._system.paths import is_inside
from corral._system.sandbox.box import SYSTEM, Bind, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support
from corral._system.threads import in_thread
from corral.errors import ConfigError, SandboxFailed
from corral.options import RunOptions
from corral.policy import Policy

WORKDIR = "/app"
FOLDERS = ("/tests", "/logs", "/solution", "/tmp", "/runtime")  # noqa: S108
OUTPUTS = ("logs/agent", "logs/verifier", "logs/artifacts")
NO_TIMEOUT = 365 * 86_400.0
LOCK = "lock"
USERS = (None, "root", 0, "0")
"""Users that harbor names and that are not the task's. In the sandbox there is one user."""
RESERVED = ("/dev", "/proc", "/run", "/runtime", "/tests", "/logs", "/solution")
"""Folders that the sandbox has, besides those of the system."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108
IMAGE_FILES = (
    "Dockerfile",
    "docker-compose.yaml",
    "docker-compose.yml",
    "compose.yaml",
    "compose.yml",
)


class SandboxEnvironment(BaseEnvironment):
    """Tasks without an image, in corral's sandbox on this machine (bubblewrap).

    ::

        harbor run -p tasks -a oracle --env corral.integrations.harbor:SandboxEnvironment
    """

    _root: Path | None = None
    _lock = -1

    @staticmethod
    def type() -> str:
        """The name that harbor shows."""
        return "corral-sandbox"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """All network modes, also changed between agent and verifier; no ranges of addresses."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Nothing is enforced: a job that requires a limit of CPU or memory is refused."""
        return EnvironmentResourceCapabilities(fractional_cpus=True)

    @classmethod
    def preflight(cls) -> None:
        """Before any trial: whether this machine has the sandbox. Raises ``SystemExit``."""
        support = find_support()
        if not support.is_complete:
            raise SystemExit(f"corral has no sandbox here: {support.reason}. {support.hint}")

    def _validate_definition(self) -> None:
        """Harbor calls it in ``__init__``; ``start`` makes the checks."""

    @property
    def workspace(self) -> Path:
        """The real path of the working directory. Raises ``RuntimeError`` before ``start``."""
        return self._started / "workspace"

    @property
    def names(self) -> dict[str, Path]:
        """The folders of this trial under the names that they have in the sandbox."""
        folders = {name: self._started / name.strip("/") for name in FOLDERS}
        return {self.workdir: self.workspace, **folders}

    @property
    def workdir(self) -> str:
        """The name of the working directory in the sandbox."""
        return (self.task_env_config.workdir or WORKDIR).rstrip("/")

    def real_path(self, name: str) -> str:
        """The real path of a folder of the sandbox. Raises as ``upload_file``."""
        return str(self._find(name))

    @property
    def policy(self) -> Policy:
        """Everything, with the network that harbor's policy permits now."""
        network = self.network_policy
        if network.network_mode == NetworkMode.PUBLIC:
            return Policy.all()
        hosts = (f"[{host}]" if ":" in host else host for host in network.allowed_hosts)
        return replace(Policy.all(), network="deny", network_hosts=tuple(hosts))

    @property
    def _started(self) -> Path:
        if self._root is None:
            raise RuntimeError(f"the environment {self.session_id} was not started")
        return self._root

    # Start and end.

    async def start(self, force_build: bool) -> None:
        """Make the folders, with the task's files. Raises ``SandboxBuildFailedError``, with one
        line, for a task that cannot run here."""
        config = self.task_env_config
        why = why_no_sandbox(
            self.environment_dir,
            image=config.docker_image or "",
            os=config.os.value,
            workdir=self.workdir,
        )
        if self._host_mounts:
            why = why or "the job mounts folders of this machine"
        if why:
            raise SandboxBuildFailedError(f"corral's sandbox cannot run this task: {why}")
        await in_thread(self._make)
        await in_thread(self._sandbox)  # fails now, and not at the first command

    def _make(self) -> None:
        folder = paths.make_dir(paths.home() / "sandboxes")
        with fs.exclusive_lock(folder / LOCK):
            _remove_abandoned(folder)
            root = paths.make_dir(folder / name_part(f"{self.session_id}-{self.context_id}"))
            self._root, self._lock = root, fs.lock_file(root / LOCK)
        for name in ("workspace", *(name.strip("/") for name in FOLDERS), *OUTPUTS):
            fs.make_folder(root / name)
        if fs.is_dir(self.environment_dir) and self._enable_environment_dir_upload:
            copy_into(self.environment_dir, self.workspace, self.workspace)

    async def stop(self, delete: bool) -> None:
        """Remove the folders; without ``delete``, they are in ``environment`` of the trial."""
        if self._root is None:
            return
        root, self._root = self._root, None
        await in_thread(self._end, root, delete)

    def _end(self, root: Path, delete: bool) -> None:
        os.close(self._lock)
        if not delete:
            target = self.trial_paths.trial_dir / "environment" / name_part(self.session_id)
            fs.make_folder(target.parent)
            shutil.move(root, target)
        fs.remove_tree(root)

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """The next command gets the network of the new policy."""

    # Commands.

    def check_user(self, user: str | int | None = None) -> None:
        """Raises ``RuntimeError`` if the task wants this to run as another user."""
        named = self._resolve_user(user)
        if named not in USERS:
            raise RuntimeError(f"corral's sandbox has no user {named!r}: it runs everything as you")

    def _sandbox(self) -> Sandbox:
        """Raises ``SandboxFailed`` and ``ConfigError``."""
        run = RunOptions.build(BUILT_IN, {"sandbox": "require", "policy": Policy.all()})
        found = sandbox.for_user_command(run, str(self.workspace), ())
        if found is None:
            raise SandboxFailed("this machine has no sandbox")
        policy = self.policy
        box = replace(
            found.box,
            binds=tuple(Bind(str(folder), name) for name, folder in self.names.items()),
            guarded=(),  # nobody uses a repository of this folder outside of the sandbox
            network=policy.network == "allow",
            hosts=policy.host_rules(),
        )
        return replace(found, box=box)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command to its end, with all that it started. Raises ``RuntimeError`` if it takes
        longer than ``timeout_sec``."""
        self.check_user(user)
        shell = fs.find_program("bash") or "sh"
        folder = shlex.quote(cwd or self.workdir)
        seconds = float(timeout_sec or NO_TIMEOUT)
        done = await run_shell_command(
            f"cd -- {folder} && exec {shlex.quote(shell)} -c {shlex.quote(command)}",
            cwd=self.workspace,
            env=self._merge_env(env) or {},
            pass_env=(),
            timeout=seconds,
            sandbox=await in_thread(self._sandbox),
        )
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr,
            return_code=137 if done.code is None else done.code,
        )

    # Files. No command runs meanwhile, so nothing can put a link in the way.

    def _find(self, path: str) -> Path:
        """Where a file of the sandbox is. Raises ``ConfigError`` if it is in no folder of the
        trial, also if a link leads there."""
        full = os.path.normpath(os.path.join(self.workdir, path))
        for name, folder in (*self.names.items(), (str(self.workspace), self.workspace)):
            if is_inside(full, name):
                found = folder / os.path.relpath(full, name)
                if is_inside(fs.real_path(found), fs.real_path(folder)):
                    return Path(fs.real_path(found))
        names = ", ".join(self.names)
        raise ConfigError(f"{path} is in no folder of corral's sandbox: these are {names}")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox. Raises ``ConfigError`` for a path that is not the
        trial's."""
        target = self._find(target_path)
        await in_thread(copy_into, Path(source_path), target, self._started)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder into the sandbox."""
        target = self._find(target_dir)
        fs.make_folder(target)
        await in_thread(copy_into, Path(source_dir), target, self._started)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox. Raises ``OSError`` if it is no regular file."""
        await in_thread(_copy_file, self._find(source_path), Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder out of the sandbox: its regular files, through no link. Harbor calls it
        also after a ``start`` that failed; then there is nothing to copy."""
        if self._root is None:
            return
        source, target = self._find(source_dir), Path(target_dir)
        fs.make_folder(target)
        await in_thread(_copy_files, source, target)


def _remove_abandoned(folder: Path) -> None:
    """Remove the folders of environments whose process was killed."""
    for root in folder.iterdir():
        if fs.is_dir(root) and not fs.is_locked(root / LOCK):
            fs.remove_tree(root)


def _copy_file(source: Path, target: Path) -> None:
    fs.make_folder(target.parent)
    with fs.open_regular(source) as opened, target.open("wb") as copy:
        shutil.copyfileobj(opened, copy)


def _copy_files(source: Path, target: Path) -> None:
    for file in _regular_files(source):
        _copy_file(file, target / file.relative_to(source))


def _regular_files(folder: Path) -> Iterator[Path]:
    for top, _, names in os.walk(folder):
        files = (Path(top, name) for name in names)
        yield from (file for file in files if fs.is_file(file) and not fs.is_link(file))


def _is_free(workdir: str) -> bool:
    """Whether the workspace can be mounted there. What the sandbox needs must stay what it is: the
    system, Python, the homes. Temporary folders may contain it, but not be it."""
    place = workdir.rstrip("/") or "/"
    if not place.isprintable() or place.startswith("//") or os.path.normpath(place) != place:
        return False
    homes = (str(paths.user_home()), str(paths.home()))
    taken = (*SYSTEM, *RESERVED, *homes, *interpreter_folders())
    return (
        os.path.isabs(place)
        and not any(is_inside(place, folder) or is_inside(folder, place) for folder in taken)
        and not any(is_inside(folder, place) for folder in TEMPORARY)
    )


def why_no_sandbox(folder: Path, *, image: str, os: str, workdir: str) -> str:
    """Why an environment of harbor cannot be a sandbox of this machine; empty if it can. ``folder``
    has its files."""
    found = next((name for name in IMAGE_FILES if fs.exists(folder / name)), None)
    reasons = {
        f"it needs the image {image}": image,
        f"it builds an image ({folder.name}/{found})": found,
        f"it is for {os}": os.lower() not in ("", "linux"),
        f"its workdir cannot be another name of a folder here: {workdir!r}": workdir
        and not _is_free(workdir),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
