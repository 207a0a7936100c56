"""One program: its input, its output, and errors of the start."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import resource
import shutil
import signal
import sys
import time
import tracemalloc
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from corral._system import platform
from corral._system.process.process import Exit, Process, ProcessSpec

ECHO = [sys.executable, "-IS", str(Path(__file__).parent / "programs" / "echo.py")]
Stdout = Literal["pipe", "file"]
both = pytest.mark.parametrize("stdout", ["pipe", "file"])
T = TypeVar("T")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With nothing in it, so that whatever stays behind there can be seen."""
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def run(main: Coroutine[Any, Any, T]) -> T:
    """In a fresh loop, bounded, and with no descriptor left open."""

    async def bounded() -> T:
        before = set(os.listdir("/proc/self/fd"))
        async with asyncio.timeout(30):
            result = await main
        assert set(os.listdir("/proc/self/fd")) == before
        return result

    return asyncio.run(bounded())


async def read_all(process: Process) -> bytes:
    chunks: list[bytes] = []
    while chunk := await process.read():
        chunks.append(chunk)
    return b"".join(chunks)


async def outcome(
    argv: list[str],
    folder: Path,
    *,
    stdin: bytes | Path | None = None,
    stdout: Stdout = "pipe",
) -> tuple[bytes, Exit, str]:
    process = await Process.start(
        ProcessSpec(argv, cwd=folder, env=os.environ, stdin=stdin, stdout=stdout, scratch=folder)
    )
    output = await read_all(process)
    return output, await process.end(), process.stderr


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


@both
def test_all_output_comes_then_the_end(folder: Path, stdout: Stdout) -> None:
    script = sh("seq 1 200000; echo last; exit 3")
    output, exit, _ = run(outcome(script, folder, stdout=stdout))
    assert output.endswith(b"200000\nlast\n")
    assert output.count(b"\n") == 200_001
    assert exit == Exit(3, None)


@both
def test_a_signal_is_distinguished_from_an_exit_code(folder: Path, stdout: Stdout) -> None:
    output, exit, _ = run(outcome(sh("echo once; kill -9 $$"), folder, stdout=stdout))
    assert (output, exit) == (b"once\n", Exit(None, signal.SIGKILL))


@both
def test_reading_after_the_end_returns_the_end_again(folder: Path, stdout: Stdout) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(["true"], cwd=folder, env=os.environ, stdout=stdout, scratch=folder)
        )
        assert [await process.read() for _ in range(3)] == [b"", b"", b""]
        assert process.exit == Exit(0, None) == await process.wait()
        await process.end()
        assert await process.read() == b""

    run(main())


def test_a_program_that_closes_stdout_has_not_ended_yet(folder: Path) -> None:
    output, exit, _ = run(outcome(sh("exec >&-; sleep 0.2; exit 4"), folder))
    assert (output, exit) == (b"", Exit(4, None))


@both
@pytest.mark.parametrize("size", [0, 10, 5_000_000])
def test_stdin_is_delivered_completely(folder: Path, stdout: Stdout, size: int) -> None:
    text = os.urandom(size)
    assert run(outcome(["cat"], folder, stdin=text, stdout=stdout))[0] == text
    file = folder / "prompt"
    file.write_bytes(text)
    assert run(outcome(["cat"], folder, stdin=file, stdout=stdout))[0] == text


def test_stdin_that_is_not_read_blocks_nothing(folder: Path) -> None:
    output, exit, _ = run(outcome(sh("echo done"), folder, stdin=b"x" * 5_000_000))
    assert (output, exit) == (b"done\n", Exit(0, None))


@both
def test_a_conversation_goes_both_ways(folder: Path, stdout: Stdout) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(
                ECHO,
                cwd=folder,
                env=os.environ,
                stdin=b"first\n",
                keep_stdin_open=True,
                stdout=stdout,
                scratch=folder,
            )
        )
        assert await process.read() == b"FIRST\n"
        for word in (b"one", b"two"):
            process.write(word + b"\n")
            assert await process.read() == word.upper() + b"\n"
        process.close_stdin()
        assert await read_all(process) == b"END\n"
        assert await process.end() == Exit(0, None)

    run(main())


def test_queued_input_is_written_before_stdin_closes(folder: Path) -> None:
    async def main() -> int:
        process = await Process.start(
            ProcessSpec(["wc", "-c"], cwd=folder, env=os.environ, keep_stdin_open=True)
        )
        for _ in range(50):
            process.write(b"x" * 100_000)
        await process.drain()
        process.write(b"y" * 1_000_000)
        process.close_stdin()
        count = int(await read_all(process))
        await process.end()
        return count

    assert run(main()) == 6_000_000


def test_writing_to_an_exited_program_is_not_an_error(folder: Path) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(["true"], cwd=folder, env=os.environ, keep_stdin_open=True)
        )
        process.write(b"x" * 1_000_000)
        await process.drain()
        await process.wait()
        process.write(b"more")
        await process.drain()
        process.close_stdin()
        await process.end()

    run(main())


def test_the_end_of_stderr_is_stored_without_colors(folder: Path) -> None:
    async def main() -> tuple[str, int]:
        received: list[bytes] = []
        process = await Process.start(
            ProcessSpec(
                sh(r"seq 1 100000 >&2; printf '\033[31mred\033[0m \377\n' >&2"),
                cwd=folder,
                env=os.environ,
                on_stderr=received.append,
                stderr_tail=1_000,
            )
        )
        await process.wait()
        stored = process.stderr
        await process.end()
        return stored, sum(map(len, received))

    stored, received = run(main())
    assert stored.endswith("100000\nred �\n")
    assert len(stored) < 1_000
    assert received == 588_895 + len("\033[31mred\033[0m \377\n")


def test_stderr_is_read_while_stdout_is_not(folder: Path) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(sh("seq 1 300000 >&2"), cwd=folder, env=os.environ)
        )
        assert await process.wait() == Exit(0, None)
        await process.end()

    run(main())


def test_a_failing_listener_does_not_stop_reading_stderr(folder: Path) -> None:
    def fail(chunk: bytes) -> None:
        raise ZeroDivisionError

    async def main() -> int:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        process = await Process.start(
            ProcessSpec(sh("seq 1 300000 >&2"), cwd=folder, env=os.environ, on_stderr=fail)
        )
        assert await process.wait() == Exit(0, None)
        await process.end()
        return len(failures)

    assert run(main()) > 0


def test_a_failing_listener_does_not_stop_the_cleanup(folder: Path) -> None:
    def fail(chunk: bytes) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _what: None)
        process = await Process.start(
            ProcessSpec(sh("echo last words >&2"), cwd=folder, env=os.environ, on_stderr=fail)
        )
        # Without the loop, so that the words are still in the pipe when it is closed.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.kill_now()
        assert process.stderr == "last words\n"

    run(main())


@both
def test_output_that_is_not_read_uses_no_memory(folder: Path, stdout: Stdout) -> None:
    async def main() -> int:
        process = await Process.start(
            ProcessSpec(
                sh("yes | head -c 40000000"),
                cwd=folder,
                env=os.environ,
                stdout=stdout,
                scratch=folder,
            )
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        total = 0
        while chunk := await process.read():
            total += len(chunk)
            await asyncio.sleep(0)
        assert total == 40_000_000
        await process.end()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert run(main()) < 8_000


@both
def test_a_grandchild_with_open_stdout_does_not_delay_the_end(folder: Path, stdout: Stdout) -> None:
    async def main() -> float:
        process = await Process.start(
            ProcessSpec(
                sh("sleep 50 & echo mine"),
                cwd=folder,
                env=os.environ,
                stdout=stdout,
                scratch=folder,
            )
        )
        started = time.monotonic()
        assert await read_all(process) == b"mine\n"
        took = time.monotonic() - started
        await process.end()
        return took

    assert run(main()) < 30


@both
def test_output_of_a_grandchild_soon_after_the_exit_is_read(folder: Path, stdout: Stdout) -> None:
    script = sh("(sleep 0.1; echo late) & echo early")
    assert run(outcome(script, folder, stdout=stdout))[0] == b"early\nlate\n"


@pytest.mark.skipif(not shutil.which("node"), reason="shows what Node loses: node is missing")
@pytest.mark.deep
def test_unflushed_output_of_node_is_lost_in_a_pipe_but_not_in_a_file(
    folder: Path,
) -> None:
    script = "process.stdout.write('x'.repeat(20e6)); process.exit()"
    node = ["node", "-e", script]
    assert len(run(outcome(node, folder, stdout="pipe"))[0]) < 20_000_000
    assert len(run(outcome(node, folder, stdout="file"))[0]) == 20_000_000


def test_the_output_file_has_no_name_and_releases_blocks_that_were_read(folder: Path) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(
                sh("yes | head -c 64000000; read wait"),
                cwd=folder,
                env=os.environ,
                keep_stdin_open=True,
                stdout="file",
                scratch=folder,
            )
        )
        total = 0
        while total < 64_000_000:
            total += len(await process.read())
        assert os.listdir(folder) == []
        files = [os.stat(f"/proc/{process.pid}/fd/1")]
        assert files[0].st_size == total
        assert files[0].st_mode & 0o777 == 0o600
        assert files[0].st_blocks * 512 < 12_000_000
        await process.end(0)

    run(main())


def test_output_that_a_program_truncates_is_read_from_the_start(folder: Path) -> None:
    script = "echo a longer line; read go; echo short > /dev/stdout; read go"

    async def main() -> bytes:
        process = await Process.start(
            ProcessSpec(
                sh(script),
                cwd=folder,
                env=os.environ,
                keep_stdin_open=True,
                stdout="file",
                scratch=folder,
            )
        )
        assert await process.read() == b"a longer line\n"
        process.write(b"go\n")
        second = await process.read()
        await process.end()
        return second

    assert run(main()) == b"short\n"


def test_a_file_is_followed_without_inotify(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError("no inotify here")

    monkeypatch.setattr(platform, "inotify_open", refuse)
    test_a_conversation_goes_both_ways(folder, "file")


def test_a_cancelled_read_loses_nothing(folder: Path) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(ECHO, cwd=folder, env=os.environ, keep_stdin_open=True)
        )
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await process.read()
        process.write(b"still here\n")
        assert await process.read() == b"STILL HERE\n"
        await process.end()

    run(main())


def test_the_program_gets_this_environment_and_no_other(folder: Path) -> None:
    async def main() -> bytes:
        process = await Process.start(
            ProcessSpec(["/usr/bin/env"], cwd=folder, env={"ONLY": "this"})
        )
        output = await read_all(process)
        await process.end()
        return output

    assert re.fullmatch(rb"ONLY=this\nCORRAL_RUN_MARK=[0-9a-f.]+\n", run(main()))


def test_a_program_that_ended_leaves_no_memory_behind(folder: Path) -> None:
    """Of thousands of runs in one process, each would stay in a cache, for example."""
    runs = 20

    async def main() -> int:
        for _ in range(runs):  # what is made once, or grows now and then
            await outcome(sh("true"), folder)
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        for _ in range(runs):
            await outcome(sh("true"), folder)
        gc.collect()
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
        places = [tracemalloc.Filter(True, "*/corral/_system/*")]
        changes = after.filter_traces(places).compare_to(before.filter_traces(places), "filename")
        return sum(change.count_diff for change in changes)

    assert run(main()) < runs
