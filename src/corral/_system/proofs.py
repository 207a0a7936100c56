"""The stored verdicts of probes: one file for each agent and digest of its program's files.

A verdict of another version of corral, or of another probe, does not count: corral may start the
program in another way now.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from corral._agents.proof import PLAN, Verdict
from corral._agents.spec import AgentSpec
from corral._system import environment, fs, paths
from corral.errors import StorageFailed
from corral.values import decode_as
from corral.version import __version__

PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables that the process of a probe gets."""
POLL = 0.1
"""Seconds between two looks at whether another process has ended its probe."""


def read(agent: AgentSpec, digest: str) -> Verdict | None:
    """The verdict about these files; None if there is none that counts."""
    for folder in dict.fromkeys((paths.home() / "proofs", paths.proofs())):
        try:
            verdict = decode_as(_file(folder, agent, digest).read_bytes(), Verdict)
        except (OSError, msgspec.MsgspecError):
            continue
        if (verdict.plan, verdict.corral, verdict.digest) == (PLAN, __version__, digest):
            return verdict
    return None


def write(agent: AgentSpec, verdict: Verdict) -> None:
    """Raises ``StorageFailed``."""
    path = _file(paths.home() / "proofs", agent, verdict.digest)
    try:
        paths.write_private(path, msgspec.json.encode(verdict))
    except OSError as error:
        raise _cannot_store(path, error) from error


@asynccontextmanager
async def locked(agent: AgentSpec, digest: str) -> AsyncGenerator[None]:
    """Inside the block no other process of this machine probes the same files. Raises
    ``StorageFailed`` if nothing can be stored: then nothing should be probed."""
    path = _file(paths.home() / "proofs", agent, digest).with_suffix(".lock")
    try:
        paths.make_dir(path.parent)
        lock = await _lock(path)
    except OSError as error:
        raise _cannot_store(path, error) from error
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def probe_home() -> Generator[tuple[str, dict[str, str]]]:
    """A folder for the process of a probe, which is removed afterwards, and the variables of that
    process: the home of the user, and what is in it, is not there."""
    from tempfile import TemporaryDirectory  # slow to load, and seldom needed

    with TemporaryDirectory(prefix="corral-probe-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        homes = {
            "HOME": folder / "user",
            "CORRAL_HOME": folder / "corral",
            "TMPDIR": folder / "tmp",
        }
        for each in homes.values():
            each.mkdir(mode=0o700)
        managed = paths.managed()
        if managed.is_dir():  # programs that agents start, and compile caches
            (folder / "corral" / "agents").symlink_to(os.path.realpath(managed))
        ours = environment.variables()
        passed = {name: ours[name] for name in PASSED_ON if name in ours}
        yield name, {**passed, **{name: str(path) for name, path in homes.items()}}


async def _lock(path: Path) -> int:
    while True:
        try:
            return fs.lock_file(path)
        except BlockingIOError:
            await asyncio.sleep(POLL)


def _file(folder: Path, agent: AgentSpec, digest: str) -> Path:
    return folder / agent.name / f"{digest}.json"


def _cannot_store(path: Path, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"the verdict of a probe cannot be stored: {path}: {error.strerror}",
        hint="Set CORRAL_HOME to a folder that can be written, or use the program as it is:"
        " --probe trust (probe='trust').",
    )
