"""If no more threads can be started, the error has a hint."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.scripted_agent import GOOD, PROGRAM, scripted_options

import corral
from corral._system import threads
from corral._system.threads import NoThread, in_thread


@contextlib.contextmanager
def no_threads() -> Generator[None]:
    """No machine has room for a stack of this size: every new thread fails."""
    threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(0)


async def test_no_thread_is_an_error_with_a_hint() -> None:
    with no_threads(), pytest.raises(NoThread, match="cannot start a thread") as caught:
        await in_thread(str)
    assert "ulimit -u" in (caught.value.hint or "")
    with no_threads(), pytest.raises(NoThread):
        threads.start(threading.Thread(target=print))


async def test_other_errors_of_the_function_are_raised_unchanged() -> None:
    def fail() -> None:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        await in_thread(fail)


async def test_a_run_that_cannot_read_its_folder_does_not_start(workspace: Path) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        with no_threads(), pytest.raises(NoThread):
            await session.run(GOOD)


async def test_a_result_is_not_lost_if_its_files_cannot_be_read(workspace: Path) -> None:
    loop = asyncio.get_running_loop()
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        events: list[corral.Event] = []
        with contextlib.ExitStack() as exhausted:
            async for event in session.prompt(GOOD):
                events.append(event)
                if event.seq == 1:
                    loop.set_default_executor(ThreadPoolExecutor())
                    exhausted.enter_context(no_threads())
    result = corral.result_from_events(events)
    assert (result.status, result.text, result.files_complete) == ("success", "hello", False)
    codes = [event.code for event in events if isinstance(event, corral.events.Error)]
    assert codes == ["files_unknown"]


def test_the_command_line_shows_no_traceback(workspace: Path) -> None:
    script = (
        "import sys, threading; threading.stack_size(1 << 46);"
        " from corral._cli.main import main; sys.argv[0] = 'corral'; main()"
    )
    argv = [sys.executable, "-c", script, "run", "--agent", "gemini-cli", "--program", str(PROGRAM)]
    env = {**os.environ, "GEMINI_API_KEY": "scripted-key-0123456789"}
    done = subprocess.run(
        [*argv, "--cwd", str(workspace), GOOD], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "cannot start a thread" in done.stderr
    assert "Traceback" not in done.stderr
