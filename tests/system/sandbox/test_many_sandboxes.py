"""Many sandboxes at once, and the end of the process that made them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from support.durable_processes import wait_until
from support.sandbox import needs_sandbox
from support.scripted_agent import child_pids, open_descriptors

from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox.box import Box, SandboxEndpoint, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support

pytestmark = needs_sandbox

COUNT = 100


def sandbox(workspace: Path) -> Sandbox:
    box = Box(
        cwd=str(workspace),
        writable=(str(workspace),),
        readable=interpreter_folders(),
        endpoints=(SandboxEndpoint("models.example", 443),),
    )
    return Sandbox(support=find_support(), box=box)


async def run_one(number: int, made: Sandbox) -> None:
    """Every second one ends by itself; the others are ended while they run."""
    command = f"(setsid sleep 600 &) ; echo {number} > {number}; echo ready"
    command += "" if number % 2 else "; sleep 600"
    spec = ProcessSpec(["sh", "-c", command], made.box.cwd, dict(os.environ), sandbox=made)
    process = await Process.start(spec)
    try:
        assert await process.read() == b"ready\n", process.stderr
    finally:
        await process.end(0.1)


def state() -> dict[str, object]:
    """What must be the same afterwards."""
    return {
        "descriptors": open_descriptors(),
        "children": child_pids(),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
    }


@pytest.mark.deep
async def test_a_hundred_sandboxes_at_once_leave_nothing(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    made = sandbox(workspace)
    await run_one(0, made)  # what is made once and kept
    before, threads = state(), threading.active_count()
    async with asyncio.timeout(110), asyncio.TaskGroup() as group:
        for number in range(1, COUNT + 1):
            group.create_task(run_one(number, made))
    assert threading.active_count() == threads
    assert len(os.listdir(workspace)) == COUNT + 1
    after = state()
    assert {name: value for name, value in after.items() if value != before[name]} == {}


KILLED = """
import asyncio, os, sys
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox.box import Box, SandboxEndpoint, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support

async def main(folder, seconds):
    endpoints = (SandboxEndpoint("models.example", 443),)
    box = Box(cwd=folder, writable=(folder,), readable=interpreter_folders(), endpoints=endpoints)
    command = f"(setsid sleep {seconds} &) ; trap '' TERM; echo ready; sleep {seconds}"
    made = Sandbox(support=find_support(), box=box)
    spec = ProcessSpec(["sh", "-c", command], folder, dict(os.environ), sandbox=made)
    processes = [await Process.start(spec) for _ in range(10)]
    for process in processes:
        assert await process.read() == b"ready\\n", process.stderr
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


def test_everything_inside_ends_if_corral_is_killed(workspace: Path) -> None:
    seconds = str(100_000 + os.getpid())
    command = [sys.executable, "-c", KILLED, str(workspace), seconds]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as corral:
        try:
            assert corral.stdout is not None
            assert corral.stdout.readline() == b"ready\n"
            wait_until(lambda: len(sleeping(seconds)) == 20, "all programs to start")
        finally:
            corral.kill()
    wait_until(lambda: not sleeping(seconds), "everything in the sandboxes to end")


def sleeping(seconds: str) -> list[str]:
    """The processes that were started to sleep so long."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(pid)
    return found
