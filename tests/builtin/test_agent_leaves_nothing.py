"""The built-in agent leaves no processes, descriptors, tasks, threads or folders."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading

import pytest
from support.builtin_agent import BuiltinAgent, process_exists, read_pid, wait_until
from support.scripted_agent import child_pids, open_descriptors

import corral
from corral._system import paths as folders
from corral._system.process.tree import ProcessRegistry
from corral.events import Event, Init, Text, ToolUse
from corral.result import Result
from corral.testing import Call, Turn, call, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)

STEPS: list[type[Event]] = [Init, Text, ToolUse]


@pytest.mark.parametrize("kind", STEPS)
async def test_leaving_a_turn_at_any_event_leaves_nothing(
    ours: BuiltinAgent, kind: type[Event]
) -> None:
    (ours.workspace / "a.txt").write_text("x")
    working = Turn(
        text="Working.",
        calls=[
            Call("shell", {"command": "echo $$ > pid; sleep 300"}),
            Call("read_file", {"file_path": "a.txt"}),
        ],
    )
    before, threads = await _open(ours), threading.active_count()
    pid = 0
    async with ours.session([working], policy="all") as session:
        async for event in session.prompt("go"):
            if isinstance(event, kind):
                if kind is ToolUse:
                    pid = await read_pid(ours.workspace / "pid")
                break
    assert not pid or not process_exists(pid)
    assert child_pids() == []
    gc.collect()
    assert open_descriptors() - before == set()
    assert threading.active_count() <= threads + 1  # the loop's own pool keeps one


async def _open(ours: BuiltinAgent) -> set[str]:
    """What is open once everything was used once: modules and pools stay."""
    await ours.events([call("shell", command="true"), say("ok")], policy="all")
    gc.collect()
    return open_descriptors()


async def test_cancelling_the_task_ends_everything(ours: BuiltinAgent) -> None:
    script = [call("shell", command="echo $$ > pid; sleep 300"), say("never")]
    run_options = ours.options(script, policy="all")
    model = run_options.pop("model", None)

    async def work() -> Result:
        return await corral.run(model or "", "go", **run_options)

    task = asyncio.create_task(work())
    pid = await read_pid(ours.workspace / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not process_exists(pid)
    assert child_pids() == []


HOST = """
import asyncio, json, sys
import corral

async def run_all():
    async with corral.session(**json.loads(sys.argv[1])) as session:
        await session.run("go")

asyncio.run(run_all())
"""


async def test_a_command_of_a_killed_agent_is_in_the_process_registry(ours: BuiltinAgent) -> None:
    # In its own session, so that no signal to the group reaches it.
    script = [call("shell", command="setsid sh -c 'echo $$ > pid; sleep 300' & wait"), say("no")]
    run_options = {**ours.options(script, policy="all"), "cwd": str(ours.workspace)}
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, json.dumps(run_options))
    pid = await read_pid(ours.workspace / "pid")
    host.kill()
    await host.wait()
    assert process_exists(pid), "nothing was left: this proves nothing"
    registry = ProcessRegistry(folders.process_registry())
    assert [entry.agent for entry in registry.reap()] == ["corral"]
    await wait_until(lambda: not process_exists(pid))
    assert registry.entries() == []


async def test_an_exception_of_the_reader_ends_everything(ours: BuiltinAgent) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ours.session([hang("a word")]) as session:
            async for event in session.prompt("go"):
                if isinstance(event, Text):
                    raise ZeroDivisionError


async def test_a_session_that_is_never_prompted_leaves_no_folder(ours: BuiltinAgent) -> None:
    async with ours.session([]) as session:
        assert session.id
    home = ours.workspace.parent / "corral-home" / "sessions"
    assert not home.exists() or list(home.iterdir()) == []


async def test_a_failed_turn_that_is_not_read_to_the_end_leaves_no_warning(
    ours: BuiltinAgent,
) -> None:
    """An exception that was never read would be reported when its task is collected."""
    loose: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loose.append(context))

    async def unread() -> None:
        async with ours.session([Turn(block_reason="SAFETY")]) as session:
            async for event in session.prompt("go"):
                if isinstance(event, Init):
                    await wait_until(lambda: len(ours.requests) == 1)
                    await asyncio.sleep(0.2)  # it fails while its events are not read
                    break

    await unread()
    for _ in range(3):  # what is left of the loop is closed by and by
        await asyncio.sleep(0.01)
        gc.collect()
    assert loose == []


async def test_the_next_prompt_ends_an_unfinished_turn(ours: BuiltinAgent) -> None:
    script = [call("shell", command="echo $$ > pid; sleep 300"), say("next")]
    async with ours.session(script, policy="all") as session:
        async for event in session.prompt("go"):
            if isinstance(event, ToolUse):
                break
        pid = await read_pid(ours.workspace / "pid")
        result = await session.run("and now?")
        assert not process_exists(pid)
    assert result.final_text == "next"


@pytest.mark.deep
async def test_fifty_concurrent_runs_succeed_and_leave_nothing(ours: BuiltinAgent) -> None:
    before = await _open(ours)
    folders = [ours.workspace / f"w{n}" for n in range(50)]
    for folder in folders:
        folder.mkdir()

    async def one(n: int) -> Result:
        command = Call("shell", {"command": f"echo {n} > out"})
        write = Call("write_file", {"file_path": "a.txt", "content": f"{n}"})
        script = [Turn(calls=[command, write]), call("read_file", file_path="a.txt"), say(f"{n}.")]
        run_options = ours.options(script, policy="all", cwd=folders[n])
        async with corral.session(**run_options) as session:
            return await session.run("go")

    results = await asyncio.gather(*(one(n) for n in range(50)))
    assert [(result.status, result.text) for result in results] == [
        ("success", f"{n}.") for n in range(50)
    ]
    for n, folder in enumerate(folders):
        assert (folder / "out").read_text() == f"{n}\n"
        assert (folder / "a.txt").read_text() == f"{n}"
        assert len(results[n].files) == 2
    assert len({result.session_id for result in results}) == 50
    assert child_pids() == []
    gc.collect()
    assert open_descriptors() - before == set()
