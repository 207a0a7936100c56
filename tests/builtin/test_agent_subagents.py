"""Sub-agents of the built-in agent: their events, their usage, their end."""

from __future__ import annotations

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

from corral.events import (
    Decision,
    Error,
    Event,
    PermissionRequest,
    Text,
    ToolResult,
    ToolUse,
)
from corral.result import result_from_events
from corral.testing import Call, Request, Turn, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)


class Cast:
    """A script for each agent, which is known by the first words of its prompt."""

    def __init__(self, **parts: list[Turn]) -> None:
        self._parts = parts

    def __call__(self, request: Request) -> Turn:
        first = next(text for message in request.history for text in message.texts)
        return self._parts[first].pop(0)


def spawn(*tasks: str) -> Turn:
    return Turn(calls=[Call("spawn_agent", {"task": task}) for task in tasks])


def use(tool: str, **args: object) -> Turn:
    return Turn(calls=[Call(tool, args)])  # type: ignore[arg-type]


async def test_a_sub_agent_is_started_and_its_answer_is_returned(ours: BuiltinAgent) -> None:
    cast = Cast(main=[spawn("under"), use("wait"), say("Both.")], under=[say("Found it.")])
    events = await ours.events(cast, "main")
    assert tool_outcomes(events) == [("spawn_agent", "success"), ("wait", "success")]
    last = ours.requests[-1]
    assert last_tool_result(last, "spawn_agent") == "agent-1 works on the task"
    assert last_tool_result(last, "wait") == "agent-1: Found it."
    assert result_from_events(events).final_text == "Both."


async def test_events_of_a_sub_agent_have_their_parent_and_own_ids(ours: BuiltinAgent) -> None:
    cast = Cast(
        main=[spawn("under"), use("wait"), use("list_dir"), say("ok")],
        under=[use("list_dir"), use("glob", pattern="*"), say("ok")],
    )
    events = await ours.events(cast, "main")
    parent = next(e.call_id for e in events_of(events, ToolUse) if e.name == "spawn_agent")
    under = [event for event in events if event.parent is not None]
    assert {event.parent for event in under} == {parent}
    uses = [event.call_id for event in events_of(under, ToolUse)]
    assert all(call_id.startswith("agent-1/") for call_id in uses)
    assert [event.call_id for event in events_of(under, ToolResult)] == uses
    assert "".join(event.delta for event in events_of(under, Text)) == "ok"
    own = [e.name for e in events_of(events, ToolUse) if e.parent is None]
    assert own == ["spawn_agent", "wait", "list_dir"]


async def test_a_sub_agent_has_its_own_history_and_starts_no_sub_agents(ours: BuiltinAgent) -> None:
    cast = Cast(
        main=[spawn("under"), use("wait"), say("ok")],
        under=[use("spawn_agent", task="deeper"), say("could not")],
    )
    events = await ours.events(cast, "main")
    theirs = [request for request in ours.requests if request.texts[0] == "under"]
    assert not {"spawn_agent", "send_input", "wait", "close_agent"} & set(theirs[0].tools)
    assert {"read_file", "edit_file", "shell"} <= set(theirs[0].tools)
    assert theirs[0].texts == ["under"]
    assert "no tool 'spawn_agent'" in last_tool_result(theirs[1], "spawn_agent")
    assert result_from_events(events).ok


async def test_tokens_of_a_sub_agent_are_counted(ours: BuiltinAgent) -> None:
    usage = {"input": 100, "output": 10}
    cast = Cast(
        main=[
            Turn(calls=[Call("spawn_agent", {"task": "under"})], usage=usage),
            Turn(calls=[Call("wait")], usage=usage),
            Turn(text="ok", usage=usage),
        ],
        under=[Turn(text="ok", usage={"input": 1000, "output": 100})],
    )
    result = result_from_events(await ours.events(cast, "main"))
    assert (result.usage.input, result.usage.output) == (1300, 130)
    assert result.cost.usd is not None


async def test_changes_of_a_sub_agent_are_changes_of_the_run(ours: BuiltinAgent) -> None:
    write = use("write_file", file_path="new.txt", content="x")
    cast = Cast(main=[spawn("under"), use("wait"), say("ok")], under=[write, say("ok")])
    result = result_from_events(await ours.events(cast, "main", policy="edits"))
    assert [(f.path.rpartition("/")[2], f.kind, f.by_tool) for f in result.files] == [
        ("new.txt", "created", True)
    ]


async def test_a_sub_agent_has_the_same_policy(ours: BuiltinAgent) -> None:
    under = [use("shell", command="touch ran"), say("refused")]
    cast = Cast(main=[spawn("under"), use("wait"), say("ok")], under=under)
    result = result_from_events(await ours.events(cast, "main", policy="edits"))
    assert [refusal.name for refusal in result.denied] == ["shell"]
    assert not (ours.workspace / "ran").exists()


async def test_permission_for_the_session_applies_to_sub_agents(ours: BuiltinAgent) -> None:
    asked: list[str] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request.title or "")
        return "allow_session"

    command = use("shell", command="echo x >> ran")
    cast = Cast(main=[command, spawn("under"), use("wait"), say("ok")], under=[command, say("ok")])
    events = await ours.events(cast, "main", ask=ask)
    assert asked == ["Run echo x >> ran"]
    assert (ours.workspace / "ran").read_text() == "x\nx\n"
    assert result_from_events(events).ok


async def test_a_message_to_a_running_sub_agent_arrives_after_its_tools(ours: BuiltinAgent) -> None:
    wait = "while [ ! -e go ]; do sleep 0.01; done"
    cast = Cast(
        main=[
            spawn("under"),
            Turn(calls=[Call("send_input", {"agent": "agent-1", "text": "hurry"})]),
            use("shell", command="touch go"),
            use("wait"),
            say("ok"),
        ],
        under=[use("shell", command=wait), say("hurried")],
    )
    events = await ours.events(cast, "main", policy="all")
    last = [request for request in ours.requests if request.texts[0] == "under"][-1]
    assert last.last_text == "hurry"
    assert "agent-1: hurried" in last_tool_result(ours.requests[-1], "wait")
    assert result_from_events(events).ok


async def test_a_message_to_a_sub_agent_that_has_answered_continues_it(ours: BuiltinAgent) -> None:
    cast = Cast(
        main=[
            spawn("under"),
            use("wait"),
            use("send_input", agent="agent-1", text="more"),
            use("wait", agents=["agent-1"]),
            say("ok"),
        ],
        under=[say("first"), say("second")],
    )
    await ours.events(cast, "main")
    assert last_tool_result(ours.requests[-1], "send_input") == "agent-1 continues"
    assert last_tool_result(ours.requests[-1], "wait") == "agent-1: second"
    last = [request for request in ours.requests if request.texts[0] == "under"][-1]
    assert last.texts == ["under", "first", "more"]


async def test_closing_a_sub_agent_ends_its_command(ours: BuiltinAgent) -> None:
    cast = Cast(
        main=[
            spawn("under"),
            use("shell", command="while [ ! -s pid ]; do sleep 0.01; done"),
            use("close_agent", agent="agent-1"),
            use("wait", agents=["agent-1"]),
            say("ok"),
        ],
        under=[use("shell", command="echo $$ > pid; sleep 300")],
    )
    events = await ours.events(cast, "main", policy="all")
    assert not process_exists(await read_pid(ours.workspace / "pid"))
    assert "there is no agent 'agent-1'" in last_tool_result(ours.requests[-1], "wait")
    assert warning_codes(events) == []
    assert result_from_events(events).ok


async def test_an_id_is_not_used_twice(ours: BuiltinAgent) -> None:
    cast = Cast(
        main=[
            spawn("a", "b"),
            use("wait"),
            use("close_agent", agent="agent-1"),
            spawn("c"),
            use("wait"),
            say("ok"),
        ],
        a=[say("A")],
        b=[say("B")],
        c=[say("C")],
    )
    await ours.events(cast, "main")
    assert last_tool_result(ours.requests[-1], "wait") == "agent-2: B\n\nagent-3: C"


async def test_more_than_eight_concurrent_sub_agents_are_refused(ours: BuiltinAgent) -> None:
    names = [f"a{n}" for n in range(9)]
    cast = Cast(main=[spawn(*names), say("ok")], **{name: [hang()] for name in names})
    events = await ours.events(cast, "main")
    statuses = [status for _, status in tool_outcomes(events)]
    assert statuses == [*["success"] * 8, "error"]
    assert "8 agents are running already" in last_tool_result(ours.requests[-1], "spawn_agent")


async def test_sub_agents_that_still_work_at_the_end_are_ended_with_a_warning(
    ours: BuiltinAgent,
) -> None:
    cast = Cast(
        main=[
            spawn("under"),
            use("shell", command="while [ ! -s pid ]; do sleep 0.01; done"),
            say("Not waiting."),
        ],
        under=[use("shell", command="echo $$ > pid; sleep 300")],
    )
    events = await ours.events(cast, "main", policy="all")
    assert warning_codes(events) == ["subagents_ended"]
    assert not process_exists(await read_pid(ours.workspace / "pid"))
    assert result_from_events(events).ok
    open_ones = [e for e in events_of(events, ToolResult) if e.parent is not None]
    assert all(event.status == "cancelled" for event in open_ones)


async def test_leaving_a_turn_ends_its_sub_agents_before_the_next_prompt(
    ours: BuiltinAgent,
) -> None:
    cast = Cast(
        main=[spawn("under"), use("shell", command="sleep 300"), say("next")],
        under=[use("shell", command="echo $$ > pid; sleep 300")],
    )
    pid = 0
    async with ours.session(cast, policy="all") as session:
        async for event in session.prompt("main"):
            if isinstance(event, ToolUse) and event.parent is not None:
                pid = await read_pid(ours.workspace / "pid")
                break
        result = await session.run("and now?")
        assert not process_exists(pid)
    assert result.final_text == "next"


async def test_a_failed_sub_agent_is_reported_and_the_run_continues(ours: BuiltinAgent) -> None:
    cast = Cast(main=[spawn("under"), use("wait"), say("ok")], under=[Turn(block_reason="SAFETY")])
    events = await ours.events(cast, "main")
    assert "agent-1: failed: " in last_tool_result(ours.requests[-1], "wait")
    assert result_from_events(events).ok


async def test_waiting_is_bounded(ours: BuiltinAgent) -> None:
    cast = Cast(main=[spawn("under"), use("wait", timeout_ms=50), say("ok")], under=[hang()])
    await ours.events(cast, "main")
    assert last_tool_result(ours.requests[-1], "wait") == "agent-1: still works"


async def test_a_failed_turn_ends_its_sub_agents(ours: BuiltinAgent) -> None:
    cast = Cast(main=[spawn("under"), Turn(block_reason="SAFETY")], under=[hang()])
    events = await ours.events(cast, "main")
    assert result_from_events(events).status == "error"
    assert "subagents_ended" in warning_codes(events)
    assert [e.code for e in events_of(events, Error) if e.level == "error"] == ["content_refused"]


async def test_many_concurrent_runs_have_valid_events(ours: BuiltinAgent) -> None:
    names = [f"a{n}" for n in range(8)]
    parts = {name: [use("list_dir"), use("list_dir"), say(name)] for name in names}
    cast = Cast(main=[spawn(*names), use("wait"), say("ok")], **parts)
    events: list[Event] = await ours.events(cast, "main")
    printed = last_tool_result(ours.requests[-1], "wait")
    assert all(f"agent-{n + 1}: a{n}" in printed for n in range(8))
    await wait_until(lambda: result_from_events(events).ok)
