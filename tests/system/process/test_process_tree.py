"""Ending a process leaves nothing of its tree, however the processes end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from corral._system import platform
from corral._system.process import tree as tree_module
from corral._system.process.process import Exit, Process, ProcessSpec
from corral._system.process.tree import ProcessTree

PROGRAMS = Path(__file__).parent / "programs"
T = TypeVar("T")
KINDS = [
    "plain",
    "flood",
    "session",
    "daemon",
    "bare-daemon",
    "unmarked-daemon",
    "unlimited-daemon",
    "deaf",
    "deaf-daemon",
    "forker",
]
LEFT = [
    "plain-left",
    "session-left",
    "daemon-left",
    "bare-daemon-left",
    "unmarked-daemon-left",
    "unlimited-daemon-left",
    "holder",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With nothing in it, so that whatever stays behind there can be seen."""
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def process_tree(kind: str, token: str) -> list[str]:
    return [sys.executable, "-IS", str(PROGRAMS / "process_family.py"), kind, token]


def descendants(token: str) -> list[int]:
    """Every process with the token in its command line: a trait that the code under test
    does not go by."""
    found: list[int] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            line = Path("/proc", pid, "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if token.encode() in line and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def our_children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def is_zombie(pid: str) -> bool:
    return ") Z " in Path("/proc", pid, "stat").read_text()


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return met


def run(main: Coroutine[Any, Any, T], *, seconds: float = 120) -> T:
    """In a fresh loop, bounded; no child, zombie or descriptor may be left."""

    async def bounded() -> T:
        files, children = set(os.listdir("/proc/self/fd")), our_children()
        async with asyncio.timeout(seconds):
            result = await main
        assert our_children() == children
        assert set(os.listdir("/proc/self/fd")) == files
        return result

    return asyncio.run(bounded())


async def ready(kind: str, token: str) -> Process:
    process = await Process.start(ProcessSpec(process_tree(kind, token), cwd="/", env=os.environ))
    assert (await process.read()).startswith(b"ready\n")
    return process


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grace", [30, 0])
def test_ending_a_process_ends_its_whole_tree(kind: str, grace: float) -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready(kind, token)
        assert descendants(token)
        exit = await process.end(min(grace, 0.5) if kind.startswith("deaf") else grace)
        assert descendants(token) == []
        forced = kind.startswith("deaf") or grace == 0
        assert exit == Exit(None, signal.SIGKILL if forced else signal.SIGTERM)

    run(main())


@pytest.mark.parametrize("kind", LEFT)
def test_processes_left_after_a_normal_exit_are_ended(kind: str) -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready(kind, token)
        assert await process.wait() == Exit(7, None)
        assert len(descendants(token)) > 0
        assert await process.end() == Exit(7, None)
        assert descendants(token) == []

    run(main())


def test_a_descendant_that_died_unnoticed_leaves_no_zombie() -> None:
    script = "read go; (setsid true &); echo gone; read end"

    async def main() -> None:
        process = await Process.start(
            ProcessSpec(["sh", "-c", script], cwd="/", env=os.environ, keep_stdin_open=True)
        )
        before = our_children()
        process.write(b"go\n")
        assert await process.read() == b"gone\n"
        assert eventually(lambda: any(map(is_zombie, our_children() - before)))
        process.close_stdin()
        await process.wait()
        await process.end()

    run(main())


def test_concurrent_ends_are_one_end_with_the_shortest_grace() -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready("deaf", token)
        started = time.monotonic()
        exits = await asyncio.gather(process.end(30), process.end(0.1), process.end(30))
        assert set(exits) == {Exit(None, signal.SIGKILL)}
        assert time.monotonic() - started < 30  # the longer grace
        assert await process.end() == exits[0]
        process.kill_now()

    run(main())


def test_a_late_look_at_the_end_still_kills_and_waits() -> None:
    token = secrets.token_hex()
    with subprocess.Popen(
        process_tree("deaf", token), stdout=subprocess.PIPE, start_new_session=True
    ) as root:
        assert root.stdout is not None
        assert root.stdout.readline() == b"ready\n"
        tree = ProcessTree(root.pid, token, None)
        tree.set_deadline(-60)  # as when the loop had other things to do for a minute
        for pause in tree.end_steps():
            time.sleep(pause)
        assert tree.gone
        assert [pid for pid in descendants(token) if not is_zombie(str(pid))] == []
        tree.reap()


def test_a_dropped_run_that_dies_late_is_reaped_by_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree_module, "KILL_PATIENCE", 0.0)  # as on a busy machine

    async def main() -> None:
        before = our_children()
        process = await ready("deaf-daemon", secrets.token_hex())
        del process
        assert our_children() - before
        async with asyncio.timeout(60):
            while our_children() - before:
                await asyncio.sleep(0.01)

    run(main())


TIDY = "trap 'sleep 0.3; echo tidied; exit 9' TERM; echo ready; while :; do sleep 0.1; done"


def test_a_program_may_clean_up_during_its_grace_period() -> None:
    async def main() -> None:
        process = await Process.start(ProcessSpec(["sh", "-c", TIDY], cwd="/", env=os.environ))
        assert await process.read() == b"ready\n"
        reading = asyncio.ensure_future(process.read())
        assert await process.end() == Exit(9, None)
        assert await reading == b"tidied\n"

    run(main())


def test_cancelling_the_end_neither_stops_it_nor_shortens_the_grace_period() -> None:
    async def main() -> None:
        process = await Process.start(ProcessSpec(["sh", "-c", TIDY], cwd="/", env=os.environ))
        assert await process.read() == b"ready\n"
        ending = asyncio.ensure_future(process.end())
        for _ in range(3):
            await asyncio.sleep(0)
            ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert process.exit == Exit(9, None)

    run(main())


def test_a_deadline_around_the_end_is_passed_on_after_it() -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready("deaf-daemon", token)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await process.end(0.3)
        assert descendants(token) == []

    run(main())


def test_ending_finishes_while_the_loop_shuts_down() -> None:
    token = secrets.token_hex()
    stored: list[asyncio.Future[Exit]] = []

    async def main() -> None:
        process = await ready("deaf-daemon", token)
        stored.append(asyncio.ensure_future(process.end(0.2)))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert descendants(token) == []


def test_kill_now_leaves_nothing_at_once() -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready("deaf-daemon", token)
        reading = asyncio.ensure_future(process.read())
        await asyncio.sleep(0)
        process.kill_now()
        assert descendants(token) == []
        assert await reading == b""
        assert await process.wait() == Exit(None, signal.SIGKILL)

    run(main())


def test_a_process_that_is_dropped_is_killed() -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready("daemon", token)
        del process
        gc.collect()
        assert descendants(token) == []

    run(main())


def test_a_forked_child_does_not_kill_its_parents_processes() -> None:
    async def main() -> None:
        token = secrets.token_hex()
        process = await ready("plain", token)
        before = descendants(token)
        if (fork := os.fork()) == 0:
            process.kill_now()
            os._exit(0)
        os.waitpid(fork, 0)
        assert descendants(token) == before
        await process.end()

    run(main())


def host(how: str, registry: Path, kind: str, token: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-Wdefault", str(PROGRAMS / "process_owner.py"), how, str(registry)]
    return subprocess.Popen(
        [*argv, *process_tree(kind, token)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(
    "how",
    ["drop", "drop-while-reading", "drop-in-a-thread", "keep-until-exit", "never-close-the-loop"],
)
def test_a_dropped_process_ends_without_warnings(how: str, folder: Path) -> None:
    token = secrets.token_hex()
    output, complaints = host(how, folder, "daemon", token).communicate(timeout=60)
    assert (output, b"ResourceWarning: unclosed event loop" in complaints) == (
        b"started\n",
        how == "never-close-the-loop",
    )
    if how != "never-close-the-loop":
        assert complaints == b""
    assert descendants(token) == []
    assert os.listdir(folder) == []


def test_the_kernel_kills_the_program_if_corral_is_killed(folder: Path) -> None:
    token = secrets.token_hex()
    with host("stay", folder, "alone", token) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        stopped = descendants(token)
        os.kill(owner.pid, signal.SIGKILL)
    assert stopped
    assert eventually(lambda: descendants(token) == [])


def test_a_program_keeps_running_after_the_thread_that_started_it_ends(folder: Path) -> None:
    token = secrets.token_hex()
    with host("thread", folder, "session", token) as owner:
        assert owner.stdout is not None
        assert [owner.stdout.readline() for _ in range(2)] == [b"started\n", b"thread over\n"]
        alive = descendants(token)
        owner.terminate()
    assert len(alive) == 3  # the owner's own command line names the token too
    for pid in descendants(token):
        os.kill(pid, signal.SIGKILL)


def test_children_of_others_are_neither_reaped_nor_ended() -> None:
    quick = subprocess.Popen(["sh", "-c", "exit 5"], start_new_session=True)
    slow = subprocess.Popen(["sleep", "50"], start_new_session=True)

    async def main() -> None:
        process = await ready("daemon-left", secrets.token_hex())
        await process.end()

    run(main())
    assert slow.poll() is None
    slow.kill()
    assert (quick.wait(), slow.wait()) == (5, -9)


def test_an_unmarked_orphan_is_ended_after_all_runs_it_may_belong_to() -> None:
    async def main() -> None:
        tokens = [secrets.token_hex() for _ in range(3)]
        kinds = ["unmarked-daemon-left", "alone", "unmarked-daemon-left"]
        runs = [await ready(kind, token) for kind, token in zip(kinds, tokens, strict=True)]
        for run_ in runs:
            await run_.end(0.5)
        assert [descendants(token) for token in tokens] == [[], [], []]

    run(main())


def test_an_orphan_of_the_caller_is_left_alone() -> None:
    token = secrets.token_hex()

    async def main() -> None:
        process = await ready("alone", secrets.token_hex())
        subprocess.run(
            process_tree("bare-daemon-left", token), check=False, stdout=subprocess.DEVNULL
        )
        while len(descendants(token)) != 1:  # while it calls exec, its command line is empty
            await asyncio.sleep(0.01)
        await process.end()

    try:
        asyncio.run(main())
        assert len(descendants(token)) == 1
    finally:
        for pid in descendants(token):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with contextlib.suppress(ChildProcessError):  # who stood between, and came to us too
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


@pytest.mark.deep
def test_a_hundred_concurrent_runs_half_of_them_cancelled_leave_nothing(folder: Path) -> None:
    chance = random.Random(20_240_611)
    token = secrets.token_hex()
    kinds = ["plain", "session", "daemon", "bare-daemon", "deaf", "deaf-daemon", *LEFT]

    async def one(number: int) -> None:
        kind = kinds[number % len(kinds)]
        process = await Process.start(
            ProcessSpec(
                process_tree(kind, token),
                cwd="/",
                env=os.environ,
                stdout="file" if number % 2 else "pipe",
                scratch=folder,
            )
        )
        try:
            assert await process.read() == b"ready\n"
            if kind in LEFT:
                await process.wait()
        finally:
            await process.end(0.3)

    async def main() -> None:
        tasks = [asyncio.ensure_future(one(number)) for number in range(100)]
        loop = asyncio.get_running_loop()
        half = set(chance.sample(range(100), 50))
        for number in half:
            loop.call_later(chance.uniform(0, 3), tasks[number].cancel)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {ends[number] for number in range(100) if number not in half} == {None}
        assert {type(end) for end in ends} == {type(None), asyncio.CancelledError}

    run(main())
    assert descendants(token) == []
    assert os.listdir(folder) == []


def test_what_a_run_left_is_found_after_looks_of_other_runs_that_found_nothing() -> None:
    async def main() -> None:
        token = secrets.token_hex()
        runs = [
            await Process.start(ProcessSpec(["cat"], cwd="/", env=os.environ)) for _ in range(3)
        ]
        for other in runs:
            await other.end()
        process = await ready("daemon-left", token)
        assert await process.wait() == Exit(7, None)
        assert await process.end() == Exit(7, None)
        assert descendants(token) == []

    run(main())


def test_runs_that_exited_before_a_look_need_none_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[object] = []
    look = platform.orphan_candidates

    def counted(besides: Collection[int] = ()) -> list[int]:
        looks.append(besides)
        return look(besides)

    async def main() -> None:
        runs = [
            await Process.start(ProcessSpec(["true"], cwd="/", env=os.environ)) for _ in range(20)
        ]
        for each in runs:
            await each.wait()
        monkeypatch.setattr(platform, "orphan_candidates", counted)
        for each in runs:
            assert await each.read() == b""
            assert await each.end() == Exit(0, None)

    run(main())
    assert len(looks) == 1


ADOPTS_IN_A_FORK = """
import ctypes, os
from corral._system import platform

def adopts():
    flag = ctypes.c_int()
    assert platform.libc().prctl(37, ctypes.byref(flag), 0, 0, 0) == 0  # PR_GET_CHILD_SUBREAPER
    return flag.value

platform.adopt_orphans("one")
platform.adopt_orphans("two")
if os.fork() == 0:
    before = adopts()
    platform.adopt_orphans("three")
    print(before, adopts(), flush=True)
    os._exit(0)
os.wait()
platform.release_orphans("one")
print(adopts())
platform.release_orphans("two")
print(adopts())
"""


def test_orphans_are_adopted_until_the_last_run_ends_and_also_in_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTS_IN_A_FORK], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["0", "1", "1", "0"], done.stderr
