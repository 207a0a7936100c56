"""The files of running processes are believed only as long as their process runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.live_runs import wait_for

from corral import live
from corral._publishing import control
from corral._publishing.records import LiveProcess, file_of, folder
from corral._system import platform

MANY = 100
PROGRAM = f"""
import asyncio, os, sys
from corral._publishing.publisher import RunControls, current
from corral._publishing.records import LiveRun
for number in range({MANY}):
    if os.fork() == 0:
        loop = asyncio.new_event_loop()
        entry = current().add(LiveRun(kind="session", id=f"s-{{number}}"), RunControls(loop=loop))
        sys.stdin.read()
        entry.close()
        os._exit(0)
sys.stdin.read()
for _ in range({MANY}):
    os.wait()
"""


def process(pid: int, start_time: str, **more: str) -> LiveProcess:
    return LiveProcess(
        pid=pid,
        start_time=start_time,
        boot=more.get("boot", platform.boot_id()),
        pid_space=more.get("pid_space", platform.pid_namespace()),
        program="run",
        socket=more.get("socket"),
    )


def write(about: LiveProcess) -> Path:
    file = file_of(about)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(about))
    return file


def start_time(pid: int) -> str:
    found = platform.get_process(pid)
    assert found is not None
    return found.start_time


@contextmanager
def sleeping() -> Generator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    with subprocess.Popen(program) as child:
        try:
            yield child
        finally:
            child.kill()


def test_a_process_is_listed_while_it_runs_and_its_file_is_removed_when_it_died() -> None:
    with sleeping() as child:
        file = write(process(child.pid, start_time(child.pid)))
        file.with_suffix(".sock").touch()
        listed = process(child.pid, start_time(child.pid), socket=str(file.with_suffix(".sock")))
        write(listed)
        assert [each.pid for each in live.processes()] == [child.pid]
    assert live.processes() == []
    assert list(folder().iterdir()) == []


def test_a_pid_that_another_process_has_now_is_not_believed() -> None:
    file = write(process(os.getpid(), "1"))
    assert live.processes() == []
    assert not file.exists()


def test_a_file_of_an_earlier_boot_is_removed_and_that_of_another_container_is_left() -> None:
    ours = start_time(os.getpid())
    old = write(process(os.getpid(), ours, boot="another"))
    assert live.processes() == []
    assert not old.exists()
    other = write(process(os.getpid(), ours, pid_space="another"))
    assert live.processes() == []
    assert other.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":2}', b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_ignored(content: bytes) -> None:
    folder().mkdir(parents=True)
    (folder() / "12-34.json").write_bytes(content)
    assert live.processes() == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    file = write(process(os.getpid(), start_time(os.getpid())))
    assert len(live.processes()) == 1
    file.rename(tmp_path / "elsewhere.json")
    file.symlink_to(tmp_path / "elsewhere.json")
    assert live.processes() == []


def test_a_process_that_does_not_answer_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    about = process(os.getpid(), start_time(os.getpid()), socket=str(tmp_path / "gone.sock"))
    run = live.LiveRun(kind="session", id="s-1", pending=(live.Pending(request_id="1"),))
    write(msgspec.structs.replace(about, runs=(run,)))
    with pytest.raises(live.LiveError, match="does not answer"):
        control.cancel("s-1")
    assert [each.run for each in live.pending()] == ["s-1"]


@pytest.mark.deep
def test_a_hundred_processes_are_listed_and_leave_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE) as parent:
        try:
            wait_for(lambda: len(live.processes()) == MANY)
            runs = live.runs()
            assert sorted(run.id for run in runs) == sorted(f"s-{n}" for n in range(MANY))
            with pytest.raises(live.LiveError, match="cannot be cancelled from here"):
                control.cancel("s-99")
        finally:
            parent.communicate(timeout=60)
    assert live.processes() == []
    assert [path for path in folder().iterdir() if path.suffix != ".lock"] == []


def test_a_process_that_was_killed_is_gone_for_others() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM.replace("100", "1")],
                          stdin=subprocess.PIPE) as parent:  # fmt: skip
        found = wait_for(live.processes)
        os.kill(found[0].pid, signal.SIGKILL)
        wait_for(lambda: not live.processes())
        assert list(folder().iterdir()) == []
        parent.communicate(timeout=60)
