"""The verifier of an attempt: what decides whether the agent has done its task.

It runs when the agent and all its processes have ended. Its files are put into the workspace only
then, so an agent cannot read them there or change them. It is one of:

* a command. Exit code 0 passes, any other one fails. ``CORRAL_ANSWER`` names a file with the
  agent's answer.
* ``/tests/test.sh`` of a harbor task. It writes the reward to ``/logs/verifier/reward.txt`` (a
  number) or ``reward.json`` (numbers by name; ``reward`` counts). A reward of 1 or more passes.
  The paths exist in the sandbox, which such a task needs.

If the verifier itself cannot run, there is no verdict: the shell does not find the command (exit
code 127 or 126), a signal kills it, or no reward is written. A verifier that does not end in its
time is ended, and the attempt has failed: programs that never end are wrong.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._core.nesting import decode_json
from corral._pipelines.attempts import Verdict, Verifier
from corral._pipelines.execution import node_options
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.node_options import sandbox_for
from corral._pipelines.execution.shell import run_shell_command
from corral._system import fs
from corral._system.clock import Stopwatch
from corral._system.process.command import CommandResult
from corral._system.sandbox.box import Bind
from corral._system.sandbox.sandbox import Sandbox
from corral._system.threads import in_thread
from corral.errors import SandboxFailed, StorageFailed
from corral.policy import Policy
from corral.result import Result
from corral.values import is_object, number_or_none

CANNOT_RUN = (126, 127)
"""Exit codes of a shell that cannot start the command."""
PASSING = 1.0
"""The least reward that passes."""
MAX_REWARD = 64 * 1024
"""Bytes of the file with the reward that are read."""
MAX_OUTPUT = 200_000
"""Characters of the verifier's output that are stored."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    reason: str = ""
    exit_code: int | None = None
    reward: float | None = None
    output: str = ""
    seconds: float = 0.0


def digest_of(path: Path, only: Sequence[str] = ()) -> str:
    """The digest of a file, or of the files of a folder with their names: all, or ``only`` these.
    Raises ``OSError``, also for what is neither a regular file nor a link."""
    digest = blake2b(digest_size=12)
    for file in _files(path, only):
        name = file.relative_to(path) if file != path else Path(path.name)
        if file.is_symlink():
            content = os.readlink(file).encode()
        else:
            with fs.open_regular(file) as opened:
                content = opened.read()
        digest.update(f"{name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def _files(path: Path, only: Sequence[str] = ()) -> Iterator[Path]:
    if only:
        yield from (file for name in only for file in _files(path / name))
        return
    if not path.is_dir() or path.is_symlink():
        yield path
        return
    for folder, names, files in os.walk(path):
        links = [name for name in names if Path(folder, name).is_symlink()]
        names[:] = sorted(name for name in names if name not in links and name != "__pycache__")
        yield from (Path(folder, name) for name in sorted([*files, *links]))


async def verify(work: NodeContext, verifier: Verifier, result: Result, own: Path) -> Verification:
    """Put the verifier's files into the workspace and run it. ``own`` is an empty folder for its
    files. It runs in the sandbox if the agent did, or if the options ask for it. Raises
    ``CorralError`` if that is not possible."""
    stopwatch = Stopwatch()
    if not await in_thread(_put_files, verifier, work.workspace, result.text, own):
        reason = f"{verifier.tests} has changed since the comparison was started"
        return Verification(verdict="missing", reason=reason)
    command = "chmod +x /tests/test.sh && /tests/test.sh" if verifier.layout else verifier.command
    done = await run_shell_command(
        command,
        cwd=work.workspace,
        env={**work.resources.command_env(work), "CORRAL_ANSWER": str(own / "answer.txt")},
        pass_env=work.resources.pass_env(work),
        timeout=verifier.timeout,
        sandbox=_sandbox(work, verifier, result, own),
    )
    done = done.redacted(work.resources.redactor)
    reward = await in_thread(read_reward, own, "logs/verifier") if verifier.layout else None
    text = done.stdout.decode("utf-8", "replace")
    if done.stderr.strip():
        text = f"{text.rstrip()}\n--- stderr ---\n{done.stderr}".lstrip()
    return msgspec.structs.replace(
        _judge(done, verifier, reward),
        output=text[-MAX_OUTPUT:],
        exit_code=done.code,
        seconds=round(stopwatch.seconds, 3),
    )


def _put_files(verifier: Verifier, workspace: Path, answer: str, own: Path) -> bool:
    """Copy the verifier's files. False: they have changed since the comparison was started."""
    tests = Path(verifier.tests)
    try:
        if verifier.tests and digest_of(tests, verifier.files) != verifier.digest:
            return False
    except OSError as error:
        raise StorageFailed(f"the tests cannot be read: {error}") from error
    try:
        own.mkdir(parents=True, exist_ok=True)
        (own / "answer.txt").write_text(answer, "utf-8", "replace")
        if verifier.tests:
            root = own if verifier.layout else workspace
            target = root / ("tests" if verifier.layout else verifier.target)
            copy_into(tests, target, root, verifier.files)
        for name in ("verifier", "agent", "artifacts") if verifier.layout else ():
            (own / "logs" / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageFailed(f"the verifier cannot be copied: {error}") from error
    return True


def _judge(done: CommandResult, verifier: Verifier, reward: float | None) -> Verification:
    """The verdict of a command that has ended; ``reward`` is what a harbor verifier wrote."""
    end, tail = done.end(verifier.timeout), done.output_tail()[-300:]
    if done.timed_out:
        return Verification(verdict="failed", reason=f"the verifier {end}")
    if verifier.layout and reward is None:
        reason = f"the verifier wrote no reward and {end}: {tail}"
        return Verification(verdict="missing", reason=reason)
    if reward is not None:
        passed, reason = reward >= PASSING, f"the reward is {reward:g}"
    elif done.code is None or done.code in CANNOT_RUN:
        return Verification(verdict="missing", reason=f"the verifier {end}: {tail}")
    else:
        passed, reason = done.ok, f"the verifier {end}"
    if passed:
        return Verification(verdict="passed", reward=reward)
    return Verification(verdict="failed", reason=reason, reward=reward)


def read_reward(root: Path, folder: str) -> float | None:
    """The reward that a harbor verifier wrote to a folder below ``root``; None if there is none
    that is a number. The verifier can write there, so only a regular file is read, through no
    link."""
    with contextlib.suppress(OSError, ValueError):
        return _finite(float(_read_below(root, f"{folder}/reward.txt").decode().strip()))
    with contextlib.suppress(OSError, UnicodeDecodeError, msgspec.DecodeError):
        rewards = decode_json(_read_below(root, f"{folder}/reward.json"))
        if not is_object(rewards):
            return _finite(number_or_none(rewards))
        numbers = [number_or_none(value) for value in rewards.values()]
        only = numbers[0] if len(numbers) == 1 else None
        return _finite(number_or_none(rewards.get("reward")) if "reward" in rewards else only)
    return None


def _read_below(root: Path, path: str) -> bytes:
    """The beginning of a regular file. Raises ``OSError``."""
    with (
        fs.opened_folder(root) as top,
        fs.parent_below(top, path.encode()) as (folder, name),
        fs.open_regular(name, dir_fd=folder) as file,
    ):
        return file.read(MAX_REWARD)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _sandbox(work: NodeContext, verifier: Verifier, result: Result, own: Path) -> Sandbox | None:
    """The sandbox of the verifier; None if it runs without one. Raises ``SandboxFailed``."""
    if not (verifier.layout or verifier.is_confined):
        return sandbox_for(work, (str(own),), default="auto" if result.sandbox else None)
    policy = node_options.policy_of(work) or Policy()
    if verifier.is_confined:
        # A stranger's command gets the workspace and the permitted network, and nothing else of
        # the policy: neither the repository's .git nor further folders.
        network, hosts = policy.network, policy.network_hosts
        policy = Policy(write="allow", shell="allow", network=network, network_hosts=hosts)
    sandbox = sandbox_for(work, (str(own),), forced="require", policy=policy)
    if sandbox is None or not verifier.layout:
        return sandbox
    # In it, ``/tests``, ``/logs`` and the task's working directory exist.
    if sandbox.support.method != "bubblewrap":
        raise SandboxFailed("a harbor task needs bubblewrap: it provides /tests and /logs")
    binds = [Bind(str(own / "tests"), "/tests"), Bind(str(own / "logs"), "/logs")]
    if verifier.workdir:
        binds.append(Bind(str(work.workspace), verifier.workdir))
    has_network = verifier.network or sandbox.box.network
    box = msgspec.structs.replace(sandbox.box, binds=tuple(binds), network=has_network)
    return msgspec.structs.replace(sandbox, box=box)


def copy_into(source: Path, target: Path, root: Path, only: Sequence[str] = ()) -> None:
    """Copy a file or the files of a folder (all, or ``only`` these) to ``target``, which is in the
    folder ``root``. What is there is replaced. Links that an agent made in the way are removed,
    never followed. Raises ``OSError``, also for a path that leads out of ``root``."""
    for file in _files(source, only):
        copy = target if file == source else target / file.relative_to(source)
        if ".." in copy.relative_to(root).parts:
            raise OSError(errno.EINVAL, "leads out of the workspace", str(copy))
        folder = root
        for part in copy.relative_to(root).parts[:-1]:
            folder = folder / part
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                folder.unlink()
            folder.mkdir(exist_ok=True)
        if copy.is_dir() and not copy.is_symlink():
            shutil.rmtree(copy)
        else:
            copy.unlink(missing_ok=True)
        shutil.copy2(file, copy, follow_symlinks=False)
