"""The loop of the built-in agent: answers, tools, limits, and how it ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.builtin_agent import (
    BuiltinAgent,
    events_of,
    last_tool_result,
    process_exists,
    read_pid,
    tool_outcomes,
    wait_until,
    warning_codes,
)

import corral
from corral._builtin.driver import FULL, EventQueue
from corral._builtin.tool_execution import ToolExecutor
from corral._builtin.tools.tool import SHELL_LIMITS, Arguments, BuiltinTool, Output, ToolOutcome
from corral._builtin.tools.workspace import Workspace
from corral._protocol.ndjson import RawEvent
from corral._sessions.permissions import PermissionBroker
from corral._sessions.tools.tools import Tools
from corral._system.environment import SecretRedactor
from corral.events import Event, Init, Text, Thinking, ToolOutput, ToolResult, ToolUse
from corral.messages import ToolCall
from corral.policy import Policy
from corral.testing import Call, Turn, call, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)


@pytest.mark.both_loops
async def test_text_thoughts_and_tools_are_reported_until_the_last_answer(
    ours: BuiltinAgent,
) -> None:
    (ours.workspace / "a.txt").write_text("one\n")
    events = await ours.events(
        [
            Turn(
                thoughts="look first",
                text="Reading.",
                calls=[Call("read_file", {"file_path": "a.txt"})],
            ),
            say("It says ", "one."),
        ]
    )
    printed = [e for e in events if isinstance(e, Text | Thinking | ToolUse | ToolResult)]
    assert [type(event).__name__ for event in printed] == [
        "Thinking", "Text", "ToolUse", "ToolResult", "Text", "Text",
    ]  # fmt: skip
    assert len(ours.requests) == 2
    assert last_tool_result(ours.requests[1], "read_file") == "     1\tone\n"
    result = corral.result_from_events(events)
    assert (result.text, result.final_text) == ("Reading.\n\nIt says one.", "It says one.")
    assert result.stop_reason == "STOP"


async def test_thoughts_are_not_emitted_if_switched_off(ours: BuiltinAgent) -> None:
    events = await ours.events([Turn(thoughts="hm", text="So.")], thinking=False)
    assert not events_of(events, Thinking)


async def test_the_event_has_the_complete_output_and_the_model_the_truncated_one(
    ours: BuiltinAgent,
) -> None:
    (ours.workspace / "long.txt").write_text("".join(f"line {n}\n" for n in range(30_000)))
    script = [call("shell", command="cat long.txt"), say("long")]
    events = await ours.events(script, policy="all")
    (result,) = events_of(events, ToolResult)
    assert result.output is not None
    assert "line 15000\n" in result.output
    shown = last_tool_result(ours.requests[1], "shell")
    assert len(shown) <= SHELL_LIMITS.chars
    assert "left out here" in shown
    assert "line 15000\n" not in shown
    assert "line 15000\n" in "".join(event.delta for event in events_of(events, ToolOutput))


async def test_results_of_functions_are_truncated(ours: BuiltinAgent) -> None:
    def much() -> str:
        return "x" * 100_000

    events = await ours.events([call("much"), say("ok")], tools=[much])
    assert events_of(events, ToolResult)[0].output == "x" * 100_000
    assert len(last_tool_result(ours.requests[1], "much")) <= 30_000


async def test_calls_that_change_nothing_run_at_the_same_time(ours: BuiltinAgent) -> None:
    """Each waits for the other: one after the other, neither would end."""
    here = asyncio.Barrier(2)

    async def meet() -> str:
        async with asyncio.timeout(60):
            await here.wait()
        return "met"

    both = Turn(calls=[Call("meet"), Call("meet")])
    events = await ours.events([both, say("ok")], tools=[meet])
    assert tool_outcomes(events) == [("meet", "success")] * 2


async def test_calls_that_change_something_run_in_their_order(ours: BuiltinAgent) -> None:
    commands = [f"sleep 0.0{9 - n}; echo {n} >> order" for n in range(6)]
    calls = [Call("shell", {"command": command}) for command in commands]
    edit = Call("edit_file", {"file_path": "order", "old_string": "5\n", "new_string": "five\n"})
    events = await ours.events([Turn(calls=[*calls, edit]), say("ok")], policy="all")
    assert (ours.workspace / "order").read_text() == "0\n1\n2\n3\n4\nfive\n"
    assert tool_outcomes(events) == [*[("shell", "success")] * 6, ("edit_file", "success")]


async def test_results_reach_the_model_in_the_order_of_the_calls(ours: BuiltinAgent) -> None:
    async def late(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"{seconds}"

    calls = [Call("late", {"seconds": 0.2}), Call("late", {"seconds": 0.0})]
    await ours.events([Turn(calls=calls), say("ok")], tools=[late])
    assert [printed for _, printed in ours.requests[1].tool_results] == [
        {"result": "0.2"},
        {"result": "0.0"},
    ]


async def test_an_invalid_call_is_an_error_result(ours: BuiltinAgent) -> None:
    wrong = [
        Call("no_such_tool", {"a": 1}),
        Call("read_file", {"name": "a.txt"}),
        Call("read_file", {"file_path": 7}),
        Call("read_file", {}),
        Call("add", {"a": "x"}),
    ]

    def add(a: int) -> int:
        return a

    turns = iter([Turn(calls=wrong), say("ok")])
    # As a function: a list of turns with a call that no tool takes is a mistake of the script.
    events = await ours.events(lambda _request: next(turns), tools=[add])
    assert [status for _, status in tool_outcomes(events)] == ["error"] * 5
    errors = [event.error or "" for event in events_of(events, ToolResult)]
    assert any("there is no tool 'no_such_tool'" in error for error in errors)
    assert sum("do not fit read_file" in error for error in errors) == 3
    assert corral.result_from_events(events).ok


async def test_raw_arguments_are_an_error_result_and_never_run() -> None:
    ran: list[str] = []

    async def run(_: Workspace, __: Arguments, ___: Output) -> ToolOutcome:
        ran.append("ran")
        return ToolOutcome("")

    executor = _executor({"tool": run})
    emitted: list[RawEvent] = []
    made = ToolCall("1", "tool", {}, raw="[1, 2]")
    (result,) = await executor.execute((made,), emitted.append)
    assert (result.is_error, ran) == (True, [])
    assert "not a JSON object: [1, 2]" in str(result.content)
    use = emitted[0]
    assert isinstance(use, ToolUse)
    assert use.input == "[1, 2]"


async def test_a_tool_that_raises_is_an_error_result() -> None:
    """Even where it raises what no tool should."""

    async def run(_: Workspace, __: Arguments, ___: Output) -> ToolOutcome:
        raise ValueError("embedded null byte")

    emitted: list[RawEvent] = []
    executor = _executor({"tool": run})
    (result,) = await executor.execute((ToolCall("1", "tool", {}),), emitted.append)
    assert result.is_error
    assert "ValueError: embedded null byte" in str(result.content)
    assert isinstance(emitted[-1], ToolResult)


def _executor(running: dict[str, object]) -> ToolExecutor:
    tools = {
        name: BuiltinTool(
            arguments=Arguments,
            run=run,  # type: ignore[arg-type]
            name=name,
            kind="read",
            description="",
            title_form="Tool",
        )
        for name, run in running.items()
    }
    workspace, broker = Workspace(Path.cwd()), PermissionBroker(Policy())
    none = Tools(())
    return ToolExecutor(tools, none, none, workspace, broker, SecretRedactor({}), granted=set())


async def test_max_turns_ends_the_turn(ours: BuiltinAgent) -> None:
    round_trip = Turn(calls=[Call("list_dir")], repeat="forever")
    result = await ours.run([round_trip], max_turns=3)
    assert (result.status, len(ours.requests)) == ("max_turns", 3)
    assert result.error is not None
    assert result.error.code == "turn_limit"
    assert "max_turns=3" in result.error.message


async def test_an_answer_on_the_last_turn_is_a_success(ours: BuiltinAgent) -> None:
    result = await ours.run([call("list_dir"), say("ok")], max_turns=2)
    assert result.ok


async def test_max_tool_rounds_ends_the_turn_before_the_tools_run(ours: BuiltinAgent) -> None:
    touch = Turn(calls=[Call("shell", {"command": "echo x >> ran"})], repeat="forever")
    result = await ours.run([touch], max_tool_rounds=2, policy="all")
    assert (result.status, len(ours.requests)) == ("max_turns", 3)
    assert (ours.workspace / "ran").read_text() == "x\nx\n"


async def test_a_turn_limit_counts_per_prompt(ours: BuiltinAgent) -> None:
    script = [call("list_dir"), call("list_dir"), say("ok")]
    async with ours.session(script, max_tool_rounds=1) as session:
        first = await session.run("one")
        second = await session.run("two")
    assert (first.status, second.status) == ("max_turns", "success")
    history = ours.requests[-1].history
    assert len([c for m in history for c in m.calls]) == len(
        [r for m in history for r in m.results]
    )


async def test_cancelling_ends_the_turn_and_the_running_command(ours: BuiltinAgent) -> None:
    script = [call("shell", command="echo $$ > pid; sleep 300"), say("never")]
    async with ours.session(script, policy="all") as session:
        turn = session.prompt("go")
        events: list[Event] = []
        pid = 0
        async for event in turn:
            events.append(event)
            if isinstance(event, ToolUse):
                pid = await read_pid(ours.workspace / "pid")
                turn.cancel()
        assert not process_exists(pid)
    result = corral.result_from_events(events)
    assert (result.status, tool_outcomes(events)) == ("interrupted", [("shell", "cancelled")])


async def test_a_cancelled_turn_leaves_a_valid_history(ours: BuiltinAgent) -> None:
    script = [call("shell", command="touch began; sleep 300"), say("went on")]
    async with ours.session(script, policy="all") as session:
        turn = session.prompt("go")
        async for event in turn:
            if isinstance(event, ToolUse):
                turn.cancel()
        result = await session.run("and now?")
    assert result.final_text == "went on"
    last = ours.requests[-1]
    assert [name for name, _ in last.tool_results] == ["shell"]
    assert "cut off" in last_tool_result(last, "shell")
    assert last.last_text == "and now?"


async def test_silence_of_the_model_is_an_idle_timeout(ours: BuiltinAgent) -> None:
    result = await ours.run([hang()], idle_timeout=0.4)
    assert result.error is not None
    assert (result.status, result.error.code) == ("timeout", "idle_timeout")


async def test_silence_after_a_tool_counts_as_idle(ours: BuiltinAgent) -> None:
    result = await ours.run([call("list_dir"), hang()], idle_timeout=0.4)
    assert result.error is not None
    assert (result.status, result.error.code) == ("timeout", "idle_timeout")


async def test_a_running_tool_does_not_count_as_idle(ours: BuiltinAgent) -> None:
    script = [call("shell", command="sleep 3"), say("ok")]
    result = await ours.run(script, policy="all", idle_timeout=2)
    assert result.ok


async def test_the_timeout_ends_a_running_tool(ours: BuiltinAgent) -> None:
    script = [call("shell", command="echo $$ > pid; sleep 300"), say("never")]
    result = await ours.run(script, policy="all", timeout=3)
    assert result.error is not None
    assert (result.status, result.error.code) == ("timeout", "total_timeout")
    assert not process_exists(int((ours.workspace / "pid").read_text()))


async def test_a_slow_reader_gets_all_events(ours: BuiltinAgent) -> None:
    """Everything has happened before the second event is read."""
    run_options = ours.options([call("list_dir"), say("a", "b", "c")], idle_timeout=60)
    async with corral.session(**run_options) as session:
        events: list[Event] = []
        async for event in session.prompt("go"):
            events.append(event)
            if isinstance(event, Init):
                await wait_until(lambda: len(ours.requests) == 2)
                await asyncio.sleep(0.3)  # the answer arrives while nothing is read
    assert corral.result_from_events(events).status == "success"
    assert corral.result_from_events(events).text == "abc"


async def test_a_very_long_answer_arrives_complete(ours: BuiltinAgent) -> None:
    words = [f"{n} " for n in range(4 * FULL)]
    async with ours.session([say(*words)]) as session:
        printed: list[str] = []
        async for event in session.prompt("go"):
            if isinstance(event, Init):
                await asyncio.sleep(0.2)  # more arrives than fits into the queue
            if isinstance(event, Text):
                printed.append(event.delta)
    assert "".join(printed) == "".join(words)


async def test_a_slow_reader_slows_the_agent() -> None:
    outbox = EventQueue()
    for _ in range(FULL + 1):
        outbox.put("x")
    room = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    assert not room.done()
    assert len(outbox.take()) == FULL + 1
    await asyncio.wait_for(room, 60)


async def test_init_describes_the_agent(ours: BuiltinAgent) -> None:
    events = await ours.events([say("ok")])
    init = events[0]
    assert isinstance(init, Init)
    assert (init.agent, init.model) == ("corral", "gemini:gemini-2.5-flash")
    assert init.cwd == os.path.realpath(ours.workspace)
    assert set(ours.requests[0].tools) == set(init.tools)
    assert {"read_file", "shell", "spawn_agent"} <= set(init.tools)
    assert init.session_id
    assert not init.resumed
    assert not warning_codes(events)
