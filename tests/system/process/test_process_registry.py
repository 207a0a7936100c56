"""Processes that a killed corral left are found and ended by another corral."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from corral import errors
from corral._system.process import tree
from corral._system.process.process import Process, ProcessSpec
from corral._system.process.tree import ProcessRegistry, RegistryEntry

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With nothing in it, so that whatever stays behind there can be seen."""
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def process_tree(kind: str, token: str) -> list[str]:
    return [sys.executable, "-IS", str(PROGRAMS / "process_family.py"), kind, token]


def descendants(token: str) -> int:
    found = subprocess.run(["pgrep", "-fc", token], capture_output=True, check=False)
    return int(found.stdout)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 60
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return met


def leave_behind(folder: Path, kind: str, token: str) -> None:
    """Have a process start a family, and kill that process."""
    argv = [
        sys.executable,
        str(PROGRAMS / "process_owner.py"),
        "stay",
        str(folder),
        *process_tree(kind, token),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        owner.send_signal(signal.SIGKILL)


def test_a_process_is_registered_while_it_runs(folder: Path) -> None:
    process_registry = ProcessRegistry(folder / "processes", agent="sleeper")

    async def main() -> None:
        process = await Process.start(
            ProcessSpec(["sleep", "50"], cwd="/", env=os.environ, registry=process_registry)
        )
        (entry,) = process_registry.entries()
        assert (entry.pid, entry.owner) == (process.pid, os.getpid())
        assert (entry.agent, entry.program, entry.is_orphaned) == ("sleeper", "sleep", False)
        (file,) = process_registry.folder.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert process_registry.reap() == []
        assert process.exit is None
        await process.end()

    asyncio.run(main())
    assert process_registry.entries() == []
    assert list(process_registry.folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["session", "daemon", "bare-daemon", "deaf-daemon", "forker"])
def test_processes_of_a_killed_owner_are_ended(kind: str, folder: Path) -> None:
    token = secrets.token_hex()
    leave_behind(folder, kind, token)
    assert descendants(token) > 0
    process_registry = ProcessRegistry(folder)
    assert [entry.is_orphaned for entry in process_registry.entries()] == [True]
    assert len(process_registry.reap()) == 1
    assert descendants(token) == 0
    assert process_registry.entries() == []


def test_a_kill_at_any_call_of_a_registration_leaves_nothing(folder: Path) -> None:
    program = [sys.executable, str(PROGRAMS / "killed_registration.py"), str(folder)]
    killed = 0
    while True:
        done = subprocess.run([*program, str(killed + 1)], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")
        child = Path("/proc", done.stdout.decode().strip() or "none", "exe")
        assert child.exists() == bool(done.stdout)
        ProcessRegistry(folder).reap()
        assert list(folder.iterdir()) == []
        assert not child.exists()
        if done.stdout:
            break
        killed += 1
    assert killed == 3  # two calls for the new entry, one for the complete one


@pytest.mark.parametrize("how", ["soft-limit", "hard-limit"])
def test_a_run_that_ends_without_free_descriptors_leaves_nothing(how: str, folder: Path) -> None:
    token = secrets.token_hex()
    owner = [sys.executable, str(PROGRAMS / "process_owner.py"), how, str(folder)]
    done = subprocess.run(
        [*owner, *process_tree("bare-daemon", token)], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"started\n", b"")
    assert descendants(token) == 0
    assert list(folder.iterdir()) == []


def test_the_entry_of_a_run_that_dies_late_is_removed_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "KILL_PATIENCE", -1.0)  # as on a busy machine

    async def main() -> None:
        process = await Process.start(
            ProcessSpec(["sleep", "50"], cwd="/", env=os.environ, registry=ProcessRegistry(folder))
        )
        process.kill_now()
        async with asyncio.timeout(60):
            while any(folder.iterdir()):
                await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.deep
def test_several_may_reap_at_once(folder: Path) -> None:
    tokens = [secrets.token_hex() for _ in range(4)]
    for token in tokens:
        leave_behind(folder, "daemon", token)
    reap = (
        "import pathlib; from corral._system.process.tree import ProcessRegistry;"
        " ProcessRegistry(pathlib.Path()).reap()"
    )
    argv = [sys.executable, "-c", reap]
    reapers = [subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE) for _ in range(4)]
    assert [reaper.communicate(timeout=60)[1] for reaper in reapers] == [b""] * 4
    assert [descendants(token) for token in tokens] == [0] * 4
    assert list(folder.iterdir()) == []


def test_another_process_with_the_pid_of_a_dead_run_is_left_alone(folder: Path) -> None:
    token = secrets.token_hex()
    leave_behind(folder, "plain", token)
    process_registry = ProcessRegistry(folder)
    (entry,) = process_registry.entries()
    with subprocess.Popen(["sleep", "50"], start_new_session=True) as stranger:
        forged = msgspec.structs.replace(entry, pid=stranger.pid)
        (folder / f"{entry.mark}.json").write_bytes(msgspec.json.encode(forged))
        assert process_registry.reap() == [forged]
        assert stranger.poll() is None
        stranger.kill()
    assert descendants(token) == 0


def test_an_entry_of_another_boot_is_orphaned_and_its_pids_are_ignored(folder: Path) -> None:
    process_registry = ProcessRegistry(folder)

    async def main() -> None:
        process = await Process.start(
            ProcessSpec(["sleep", "50"], cwd="/", env=os.environ, registry=process_registry)
        )
        (entry,) = process_registry.entries()
        old = msgspec.structs.replace(entry, boot="another")
        (folder / f"{entry.mark}.json").write_bytes(msgspec.json.encode(old))
        assert process_registry.reap() == [old]
        assert process.exit is None
        assert process_registry.entries() == []
        await process.end()

    asyncio.run(main())


def test_entries_of_another_container_are_ignored(folder: Path) -> None:
    leave_behind(folder, "flood", secrets.token_hex())
    process_registry = ProcessRegistry(folder)
    (entry,) = process_registry.entries()
    file = folder / f"{entry.mark}.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(entry, pid_space="other")))
    assert process_registry.entries() == process_registry.reap() == []
    assert msgspec.json.decode(file.read_bytes(), type=RegistryEntry).pid == entry.pid


def test_files_that_are_not_entries_are_skipped(folder: Path) -> None:
    (folder / "half.json").write_text('{"pid": 1')
    (folder / "other.json").write_text("[]")
    assert ProcessRegistry(folder).entries() == []
    assert ProcessRegistry(folder / "missing").reap() == []


def test_a_process_that_cannot_be_registered_is_not_left_running(folder: Path) -> None:
    (folder / "file").write_text("")
    token = secrets.token_hex()

    async def main() -> None:
        with pytest.raises(errors.StorageFailed, match="cannot write in"):
            await Process.start(
                ProcessSpec(
                    process_tree("plain", token),
                    cwd="/",
                    env=os.environ,
                    registry=ProcessRegistry(folder / "file"),
                )
            )

    asyncio.run(main())
    assert eventually(lambda: descendants(token) == 0)
