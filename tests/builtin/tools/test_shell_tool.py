"""Commands: no processes are left, no secrets are passed, output is bounded."""

from __future__ import annotations

import asyncio
import resource
import shlex
import sys
import time
from pathlib import Path

import pytest
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools import all_tools
from corral._builtin.tools.shell import STORED, OutputBuffer, run_program
from corral._builtin.tools.tool import ToolOutcome
from corral._builtin.tools.workspace import Workspace

FORKS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("pids", "a").write(f"{os.getpid()}\\n")
        time.sleep(300)
    os._exit(0)
open("pids", "a").write(f"{os.getpid()}\\n")
print("started", flush=True)
time.sleep(300)
"""
"""Ignores TERM, and has a grandchild in its own session that does too."""


def python(code: str) -> str:
    return f"exec {shlex.quote(sys.executable)} -IS -c {shlex.quote(code)}"


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def pids(workspace: Path) -> list[int]:
    return [int(line) for line in (workspace / "pids").read_text().split()]


async def started(workspace: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not (workspace / "pids").exists() or len(pids(workspace)) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_output_and_errors_come_in_order_with_the_exit_code(workspace: Path) -> None:
    command = "echo one; echo two >&2; echo three; exit 3"
    output = await call_error(Workspace(workspace), "shell", command=command)
    assert output == "one\ntwo\nthree\n[the command exited with 3]"


async def test_a_command_works_in_the_root_without_input(workspace: Path) -> None:
    output = await call_ok(Workspace(workspace), "shell", command="pwd; cat; printf end")
    assert output == f"{workspace}\nend\n[the command exited with 0]"


async def test_a_killed_or_silent_command_is_reported(workspace: Path) -> None:
    here = Workspace(workspace)
    assert "killed by signal 9" in await call_error(here, "shell", command="kill -9 $$")
    assert await call_ok(here, "shell", command="true") == (
        "[the command exited with 0, without output]"
    )


async def test_a_process_tree_that_ignores_term_is_killed_at_the_timeout(workspace: Path) -> None:
    output = await call_error(
        Workspace(workspace), "shell", command=f"({python(FORKS)})", timeout_ms=1_500
    )
    assert output.startswith("started\n[the command did not end within 1.5 s and was killed")
    assert len(pids(workspace)) == 2
    assert not [pid for pid in pids(workspace) if is_there(pid)]


async def test_a_cancelled_call_ends_its_process_tree(workspace: Path) -> None:
    task = asyncio.create_task(call_tool(Workspace(workspace), "shell", command=python(FORKS)))
    await started(workspace, 2)
    assert all(is_there(pid) for pid in pids(workspace))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [pid for pid in pids(workspace) if is_there(pid)]


async def test_background_processes_neither_block_nor_stay(workspace: Path) -> None:
    command = "sleep 300 & echo $! >> pids; setsid sleep 300 & echo $! >> pids; echo done"
    async with asyncio.timeout(30):
        output = await call_ok(Workspace(workspace), "shell", command=command)
    assert output == "done\n[the command exited with 0]"
    assert not [pid for pid in pids(workspace) if is_there(pid)]


async def test_output_of_a_command_after_term_is_included(workspace: Path) -> None:
    command = "trap 'echo tidied; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    output = await call_error(Workspace(workspace), "shell", command=command, timeout_ms=500)
    assert output.startswith("begun\n")
    assert "tidied" in output
    assert "did not end within 0.5 s" in output


@pytest.mark.deep
async def test_endless_output_is_bounded_in_time_and_memory(workspace: Path) -> None:
    reported: list[str] = []
    shell = all_tools()["shell"]
    assert shell is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with asyncio.timeout(30):
        outcome = await shell.call(
            Workspace(workspace), {"command": "yes flood", "timeout_ms": 1_500}, reported.append
        )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024  # in KiB
    assert len(outcome.text) < STORED + 1_000
    assert "bytes of output were dropped here" in outcome.text
    assert len(outcome.shown) <= 30_000
    assert outcome.shown.startswith("flood\nflood\n")
    assert sum(map(len, reported)) < 2 * STORED
    assert "not shown live" in reported[-1]


async def test_a_flood_with_a_slow_reader_still_ends_in_time(workspace: Path) -> None:
    """There is always more to read, so reading alone would never let the timeout fire."""

    def slow(_: bytes) -> None:
        time.sleep(0.02)

    async with asyncio.timeout(60):
        ran = await run_program(Workspace(workspace), ["yes"], workspace, 0.5, slow)
    assert ran.late


async def test_the_end_of_a_long_output_is_kept(workspace: Path) -> None:
    output = await call_ok(
        Workspace(workspace), "shell", command="echo first; yes | head -c 5M; echo last"
    )
    assert output.startswith("first\n")
    assert output.endswith("last\n[the command exited with 0]")
    assert len(output.splitlines()) <= 256


async def test_output_is_reported_while_the_command_runs(workspace: Path) -> None:
    reported: list[str] = []
    received = asyncio.Event()

    def report(delta: str) -> None:
        reported.append(delta)
        received.set()

    shell = all_tools()["shell"]
    assert shell is not None
    command = "echo now; until [ -e go ]; do sleep 0.02; done; printf 'caf\\303'; printf '\\251'"
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task: asyncio.Task[ToolOutcome] = group.create_task(
            shell.call(Workspace(workspace), {"command": command}, report)
        )
        await received.wait()
        assert reported == ["now\n"]
        (workspace / "go").touch()
    assert "".join(reported) == "now\ncafé"
    assert task.result().text.startswith("now\ncafé\n")


async def test_output_that_is_not_utf8_is_replaced(workspace: Path) -> None:
    output = await call_ok(Workspace(workspace), "shell", command=r"printf 'a\377b 日本\n'")
    assert output.startswith("a\ufffdb 日本\n")


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "my_api_key", "APP_SECRET", "GITHUB_TOKEN", "DB_PASSWORD"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "X_CREDENTIAL", "AWS_SECRET_ACCESS_KEY", "TOKEN"),
        *("aws_access_key", "PGPASSWORD", "SSH_PRIVATE_KEY"),
    ],
)
async def test_secrets_are_not_passed_unless_requested(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "canary")
    assert "canary" not in await call_ok(Workspace(workspace), "shell", command="env")
    passed = Workspace(workspace, pass_env=[name])
    assert f"{name}=canary" in await call_ok(passed, "shell", command="env")
    given = Workspace(workspace, env={name: "given"})
    assert f"{name}=given" in await call_ok(given, "shell", command="env")


async def test_commands_have_no_pager_and_no_password_prompt(workspace: Path) -> None:
    command = "echo $PAGER $GIT_PAGER $GIT_TERMINAL_PROMPT"
    assert (await call_ok(Workspace(workspace), "shell", command=command)).startswith("cat cat 0\n")


@pytest.mark.parametrize("timeout", [0, 600_001, "soon"])
async def test_an_invalid_timeout_is_an_error(workspace: Path, timeout: int | str) -> None:
    output = await call_error(Workspace(workspace), "shell", command="touch x", timeout_ms=timeout)
    assert "timeout_ms: expected" in output
    assert not (workspace / "x").exists()


def test_a_cut_splits_no_character() -> None:
    for size in range(1, 9):
        stored = OutputBuffer(size)
        for _ in range(50):
            stored.add("日".encode())
        assert "\ufffd" not in stored.text


def test_output_is_stored_completely_up_to_the_limit() -> None:
    stored = OutputBuffer(1_000)
    for at in range(0, 1_000, 7):
        stored.add(b"x" * min(7, 1_000 - at))
    assert stored.text == "x" * 1_000
    for _ in range(10_000):
        stored.add(b"y" * 10_000)
    assert len(stored.text) < 1_200
