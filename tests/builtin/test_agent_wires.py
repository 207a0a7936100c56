"""One run on every vendor's wire: the same events, result and files."""

from __future__ import annotations

import pytest
from support.builtin_agent import (
    MODELS,
    BuiltinAgent,
    events_of,
    last_tool_result,
    tool_outcomes,
    warning_codes,
)

import corral
from corral.events import ToolResult
from corral.policy import Policy
from corral.result import result_from_events
from corral.testing import Call, Turn, call, say
from corral.values import Json

pytest_plugins = ("support.builtin_agent_fixture",)

WIRES = ["gemini", "anthropic", "openai", "chat"]
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch\n"


def edit(wire: str) -> Call:
    if wire == "openai":
        return Call("apply_patch", {"patch": PATCH})
    args: dict[str, Json] = {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"}
    return Call("edit_file", args)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_is_the_same_over_every_wire(ours: BuiltinAgent, wire: str) -> None:
    (ours.workspace / "a.py").write_text("x = 1\n")
    shell = Call("shell", {"command": "touch ran"})
    script = [
        Turn(
            thoughts="look",
            text="Reading.",
            calls=[Call("read_file", {"file_path": "a.py"}), Call("glob", {"pattern": "*.py"})],
            usage={"input": 100, "output": 10},
        ),
        Turn(calls=[edit(wire), shell], usage={"input": 200, "output": 20}),
        Turn(text=["All ", "done."], usage={"input": 300, "output": 30}),
    ]
    events = await ours.events(script, wire=wire, policy=Policy.edits())
    result = result_from_events(events)
    assert (result.status, result.error) == ("success", None)
    assert (result.text, result.final_text) == ("Reading.\n\nAll done.", "All done.")
    assert tool_outcomes(events) == [
        ("read_file", "success"),
        ("glob", "success"),
        (edit(wire).name, "success"),
        ("shell", "denied"),
    ]
    assert [refusal.name for refusal in result.denied] == ["shell"]
    assert [(f.path.rpartition("/")[2], f.kind) for f in result.files] == [("a.py", "modified")]
    assert (ours.workspace / "a.py").read_text() == "x = 2\n"
    assert not (ours.workspace / "ran").exists()
    assert (result.usage.input, result.usage.output) == (600, 60)
    assert result.model == MODELS[wire]
    last = ours.requests[-1]
    assert last_tool_result(last, "read_file") == "     1\tx = 1\n"
    assert last_tool_result(last, "shell").endswith("not allowed: shell=deny")
    assert [made.name for made in last.tool_calls] == [
        "read_file",
        "glob",
        edit(wire).name,
        "shell",
    ]
    assert ours.failures == []
    assert warning_codes(events) == []


@pytest.mark.parametrize("wire", WIRES)
async def test_a_session_is_resumed_on_every_wire(ours: BuiltinAgent, wire: str) -> None:
    run_options = ours.options([call("list_dir"), say("One."), call("list_dir"), say("Two.")], wire)
    async with corral.session(**run_options) as session:
        first, second = await session.run("a"), await session.run("b")
    assert (first.final_text, second.final_text) == ("One.", "Two.")
    assert [text for text in ours.requests[-1].texts if text] == ["a", "One.", "b"]


@pytest.mark.parametrize("wire", ["anthropic", "openai", "chat"])
async def test_duplicate_ids_of_a_vendor_are_made_unique(ours: BuiltinAgent, wire: str) -> None:
    twice = Turn(calls=[Call("list_dir", {}, "same"), Call("glob", {"pattern": "*"}, "same")])
    events = await ours.events([twice, call("list_dir"), say("ok")], wire=wire)
    ids = [event.call_id for event in events_of(events, ToolResult)]
    assert len(set(ids)) == 3
    assert result_from_events(events).ok


@pytest.mark.parametrize("wire", WIRES)
async def test_reasoning_effort_reaches_the_model(ours: BuiltinAgent, wire: str) -> None:
    events = await ours.events([say("ok")], wire=wire, reasoning_effort="low")
    assert result_from_events(events).ok
    body = str(ours.requests[0].body)
    assert any(word in body for word in ("thinkingBudget", "budget_tokens", "effort"))
