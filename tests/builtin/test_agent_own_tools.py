"""Functions, types, checks, prompts and files that a caller gives to the built-in agent."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.builtin_agent import (
    MODELS,
    BuiltinAgent,
    events_of,
    inline_media,
    last_tool_result,
    tool_outcomes,
)
from support.scripted_agent import scripted_options

import corral
from corral import errors
from corral._sessions.tools.hooks import Deny, Edit, Hook, HookAnswer, HookVerdict, ToolRequest
from corral._sessions.tools.tools import Tools
from corral.errors import ConfigError
from corral.events import Event, ToolResult, ToolUse
from corral.models import Image
from corral.policy import Policy
from corral.result import Result, result_from_events
from corral.testing import Call, Turn, call, say

pytest_plugins = ("support.builtin_agent_fixture",)


@dataclass
class Report:
    title: str
    score: int


PIXEL = b"\x89PNG\r\n\x1a\n a dot"
GOOD = '```json\n{"title": "fine", "score": 3}\n```'


def run_options(ours: BuiltinAgent, script: list[Turn]) -> dict[str, str]:
    """The environment that leads a run to this script."""
    return dict(ours.options(script).get("env", {}))


async def test_functions_are_called_sync_or_async_in_this_process(ours: BuiltinAgent) -> None:
    threads: list[int] = []

    def add(a: int, b: int = 2) -> int:
        """Adds.

        Args:
            a: The first.
        """
        threads.append(threading.get_ident())
        return a + b

    async def shout(text: str) -> str:
        return text.upper()

    calls = [Call("add", {"a": 1}), Call("shout", {"text": "hey"})]
    events = await ours.events([Turn(calls=calls), say("ok")], tools=[add, shout])
    assert sorted(tool_outcomes(events)) == [("add", "success"), ("shout", "success")]
    assert [use.kind for use in events_of(events, ToolUse)] == ["mcp", "mcp"]
    assert (
        last_tool_result(ours.requests[1], "add"),
        last_tool_result(ours.requests[1], "shout"),
    ) == ("3", "HEY")
    assert threads != [threading.get_ident()]
    assert {"add", "shout"} <= set(ours.requests[0].tools)


async def test_a_function_that_raises_is_an_error_result(ours: BuiltinAgent) -> None:
    def bad() -> str:
        raise LookupError("nothing there")

    events = await ours.events([call("bad"), say("ok")], tools=[bad])
    assert tool_outcomes(events) == [("bad", "error")]
    assert "LookupError: nothing there" in last_tool_result(ours.requests[1], "bad")
    assert result_from_events(events).ok


async def test_a_function_that_hangs_is_abandoned_and_blocks_nothing(ours: BuiltinAgent) -> None:
    locked = threading.Event()

    def hangs() -> str:
        locked.wait(60)
        return "late"

    try:
        async with ours.session([call("hangs"), say("next")], tools=[hangs]) as session:
            turn = session.prompt("go")
            events: list[Event] = []
            async for event in turn:
                events.append(event)
                if isinstance(event, ToolUse):
                    turn.cancel()
            assert result_from_events(events).status == "interrupted"
            assert (await session.run("and now?")).final_text == "next"
    finally:
        locked.set()


async def test_hooks_see_change_and_refuse_calls(ours: BuiltinAgent) -> None:
    seen: list[str] = []

    def add(a: int) -> int:
        return a

    def before(made: ToolRequest) -> Deny | Edit | None:
        seen.append(made.name)
        if made.arguments == {"a": 1}:
            return Deny("not one")
        return Edit({"a": 20}) if made.arguments == {"a": 2} else None

    def after(_: ToolRequest, answer: HookAnswer) -> HookAnswer | None:
        return HookAnswer(f"<{answer.text}>") if answer.ok else None

    tools = Tools([add], hooks=[Hook(before=before, after=after)])
    calls = [Call("add", {"a": n}) for n in (1, 2, 3)]
    env = run_options(ours, [Turn(calls=calls), say("ok")])
    result = await corral.run(
        MODELS["gemini"], "go", tools=tools, env=env, cwd=ours.workspace, retries=0
    )
    assert seen == ["add"] * 3
    message = [str(message) for _, message in ours.requests[1].tool_results]
    assert "not one" in message[0]
    assert ("<20>" in message[1], "<3>" in message[2]) == (True, True)
    assert [(refusal.name, refusal.reason) for refusal in result.denied] == [
        ("add", "denied: not one")
    ]


async def test_a_policy_can_deny_the_callers_functions(ours: BuiltinAgent) -> None:
    ran: list[int] = []

    def mine() -> None:
        ran.append(1)

    policy = Policy(mcp="deny")
    events = await ours.events([call("mine"), say("ok")], tools=[mine], policy=policy)
    assert (tool_outcomes(events), ran) == ([("mine", "denied")], [])


async def typed(ours: BuiltinAgent, script: list[Turn], **more: object) -> Result[Report]:
    env = run_options(ours, script)
    options: Any = {"env": env, "cwd": ours.workspace, "retries": 0, **more}
    result: Result[Report] = await corral.run(MODELS["gemini"], "review", output=Report, **options)
    return result


async def test_a_typed_output_without_tools(ours: BuiltinAgent) -> None:
    result = await typed(ours, [call("list_dir"), say(f"Here:\n{GOOD}")])
    assert result.output == Report("fine", 3)
    assert '"score"' in ours.requests[0].last_text


async def test_a_typed_output_is_repaired_in_the_same_session(ours: BuiltinAgent) -> None:
    result = await typed(ours, [say('{"title": "x"}'), say(GOOD)])
    assert result.output == Report("fine", 3)
    assert len(ours.requests) == 2
    assert "does not fit" in ours.requests[1].last_text


async def test_output_that_is_never_repaired_is_an_error(ours: BuiltinAgent) -> None:
    result = await typed(ours, [say("no"), say("no")], repairs=1)
    assert result.error is not None
    assert (result.ok, result.error.code) == (False, "schema_not_met")
    with pytest.raises(errors.SchemaNotMet):
        assert result.output


def helper() -> str:
    return "so"


@pytest.mark.parametrize("last", [say("Handed in."), Turn()])
async def test_a_typed_output_is_submitted_by_a_tool(ours: BuiltinAgent, last: Turn) -> None:
    """After which a model need say nothing more."""
    submit = call("submit_result", title="fine", score=3)
    result = await typed(ours, [call("helper"), submit, last], tools=[helper])
    assert (result.status, result.output) == ("success", Report("fine", 3))


async def test_an_invalid_value_is_repaired_in_the_same_turn(ours: BuiltinAgent) -> None:
    script = [
        call("submit_result", title="fine"),
        call("submit_result", title="fine", score=3),
        say("ok"),
    ]
    result = await typed(ours, script, tools=[helper])
    assert result.output == Report("fine", 3)
    assert "score" in str(ours.requests[1].tool_results[-1])


async def test_the_run_continues_until_the_check_succeeds(ours: BuiltinAgent) -> None:
    write = call("write_file", file_path="done.txt", content="x")
    env = run_options(ours, [say("Done."), write, say("Now.")])
    result = await corral.run(
        MODELS["gemini"],
        "write done.txt",
        until=corral.files_exist("done.txt"),
        policy="edits",
        env=env,
        cwd=ours.workspace,
        retries=0,
    )
    assert result.ok
    assert "done.txt" in ours.requests[1].last_text
    assert [file.kind for file in result.files] == ["created"]
    assert result.usage.input is not None


async def test_a_prompt_object_has_its_text_tools_and_type(ours: BuiltinAgent) -> None:
    env = run_options(ours, [call("submit_result", title="fine", score=3), say("ok")])
    section = corral.Section("Help", "Be {style}.", tools=[helper])
    complete = corral.Prompt(
        "Review this.", sections=[section], parameters={"style": str}, output=Report
    )
    prompt = complete.with_(style="strict")
    result = await corral.run(MODELS["gemini"], prompt, env=env, cwd=ours.workspace, retries=0)
    assert result.output == Report("fine", 3)
    assert "Review this.\n\n## Help\n\nBe strict." in ours.requests[0].last_text
    assert {"helper", "submit_result"} <= set(ours.requests[0].tools)


async def test_images_and_files_are_sent(ours: BuiltinAgent) -> None:
    pixel = bytes.fromhex("89504e470d0a1a0a") + b"pixels"
    (ours.workspace / "a.png").write_bytes(pixel)
    (ours.workspace / "notes.txt").write_text("remember é")
    (ours.workspace / "a.pdf").write_bytes(b"%PDF-1.7 \xff\xfe")
    await ours.events([say("ok")], images=["a.png"], attachments=["notes.txt", "a.pdf"])
    request = ours.requests[0]
    assert inline_media(request) == [
        ("image/png", pixel),
        ("application/pdf", b"%PDF-1.7 \xff\xfe"),
    ]
    assert '<file path="notes.txt">\nremember é\n</file>' in request.last_text


async def test_a_file_that_cannot_be_sent_is_an_error_before_the_start(ours: BuiltinAgent) -> None:
    (ours.workspace / "a.bin").write_bytes(b"\xff\x00\x01")
    with pytest.raises(corral.errors.ConfigError, match="neither text nor an image"):
        await ours.events([say("never")], attachments=["a.bin"])
    with pytest.raises(corral.errors.ConfigError, match="does not exist"):
        await ours.events([say("never")], images=["no.png"])
    assert ours.requests == []


async def test_a_prompt_file_is_the_prompt(ours: BuiltinAgent) -> None:
    Path(ours.workspace / "task.md").write_text("the task")
    events = await ours.events([say("ok")], prompt_file="task.md")
    assert ours.requests[0].last_text == "the task"
    assert not events_of(events, ToolResult)


async def test_a_function_may_run_an_agent_itself(ours: BuiltinAgent) -> None:
    """Inside a call, in the same loop."""
    inner = ours.options([say("inner")])

    async def delegate(task: str) -> str:
        async with corral.session(**inner) as session:
            return (await session.run(task)).text

    outer = ours.options([call("delegate", task="x"), say("outer")])
    async with corral.session(tools=[delegate], **outer) as session:
        async with asyncio.timeout(30):
            result = await session.run("go")
    assert result.text == "outer"
    assert last_tool_result(ours.requests[-1], "delegate") == "inner"


async def test_agent_hooks_apply_to_built_in_tools_and_functions(ours: BuiltinAgent) -> None:
    seen: list[str] = []

    def before(call: ToolRequest) -> HookVerdict:
        seen.append(f"before {call.name}")
        if call.name == "write_file":
            return Edit({**call.arguments, "content": "changed"})
        return Deny("not today") if call.name == "shell" else None

    def after(call: ToolRequest, answer: HookAnswer) -> HookAnswer | None:
        seen.append(f"after {call.name}: {answer.status}")
        return HookAnswer("other words") if call.name == "mine" else None

    def mine() -> str:
        return "my words"

    tools = Tools([mine], agent_hooks=[Hook(before, after)])
    options = ours.options(
        [
            call("write_file", file_path="a.txt", content="first"),
            call("shell", command="touch evil"),
            call("mine"),
            say("done"),
        ],
        policy=Policy.all(),
    )
    events: list[Event] = []
    result = await corral.run("corral", "do it", tools=tools, on_event=events.append, **options)
    assert result.ok, result.error
    assert (ours.workspace / "a.txt").read_text() == "changed"
    assert not (ours.workspace / "evil").exists()
    assert seen == [
        "before write_file",
        "after write_file: success",
        "before shell",
        "after shell: denied",
        "before mine",
        "after mine: success",
    ]
    results = [event for event in events if isinstance(event, ToolResult)]
    assert [(each.status, each.output or each.error) for each in results][1:] == [
        ("denied", "denied: not today"),
        ("success", "other words"),
    ]


async def test_a_hook_of_the_agent_that_raises_stops_the_call(ours: BuiltinAgent) -> None:
    def before(_: ToolRequest) -> HookVerdict:
        raise RuntimeError("the guard is ill")

    options = ours.options([call("shell", command="touch evil"), say("done")], policy=Policy.all())
    tools = Tools([], agent_hooks=[Hook(before)])
    await corral.run("corral", "do it", tools=tools, **options)
    assert not (ours.workspace / "evil").exists()


async def test_agent_hooks_are_an_error_for_an_agent_that_does_not_ask(workspace: Path) -> None:
    tools = Tools([], agent_hooks=[Hook()])
    with pytest.raises(ConfigError, match="agent_hooks are not available"):
        await corral.run("gemini-cli", "do it", tools=tools, **scripted_options(workspace))


@pytest.mark.parametrize("wire", [*MODELS])
async def test_an_image_that_a_function_returns_reaches_the_model(
    ours: BuiltinAgent, wire: str
) -> None:
    def look() -> list[object]:
        return ["a dot", Image(PIXEL)]

    events = await ours.events([call("look"), say("ok")], tools=[look], wire=wire)
    assert result_from_events(events).ok
    assert tool_outcomes(events) == [("look", "success")]
    assert "a dot" in last_tool_result(ours.requests[1], "look")
    assert b64encode(PIXEL).decode() in msgspec.json.encode(ours.requests[1].body).decode()
