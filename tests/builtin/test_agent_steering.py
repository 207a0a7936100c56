"""Messages that arrive while the built-in agent works."""

from __future__ import annotations

import asyncio

import pytest
from support.builtin_agent import BuiltinAgent
from support.scripted_agent import GOOD, scripted_options

import corral
from corral.events import Init, ToolUse
from corral.testing import Call, Turn, call, say

pytest_plugins = ("support.builtin_agent_fixture",)


async def test_steering_reaches_the_model_after_the_tools(ours: BuiltinAgent) -> None:
    go = asyncio.Event()

    async def slow() -> str:
        await go.wait()
        return "done"

    async with ours.session([call("slow"), say("ok")], tools=[slow]) as session:
        async for event in session.prompt("begin"):
            if isinstance(event, ToolUse):
                session.steer("in French, please")
                go.set()
    first, second = ours.requests
    assert "in French, please" not in first.texts
    assert second.last_text == "in French, please"
    assert [name for name, _ in second.tool_results] == ["slow"]


async def test_steering_without_a_running_tool_is_sent_after_the_answer(ours: BuiltinAgent) -> None:
    async with ours.session([say("One."), say("Un.")]) as session:
        async for event in session.prompt("begin"):
            if isinstance(event, Init):
                session.steer("in French")
    assert [request.last_text for request in ours.requests] == ["begin", "in French"]


async def test_a_follow_up_comes_after_the_answer_in_the_same_turn(ours: BuiltinAgent) -> None:
    script = [call("list_dir"), say("One."), say("Two.")]
    async with ours.session(script) as session:
        turn = session.prompt("begin")
        session.follow_up("and then?")
        result = await turn.collect()
    assert [request.last_text for request in ours.requests] == ["begin", "begin", "and then?"]
    assert result.final_text == "Two."


async def test_several_messages_arrive_in_their_order(ours: BuiltinAgent) -> None:
    script = [call("list_dir"), say("One."), say("Two.")]
    async with ours.session(script) as session:
        turn = session.prompt("begin")
        session.steer("a")
        session.steer("b")
        session.follow_up("c")
        await turn.collect()
    assert [text for text in ours.requests[-1].texts if len(text) == 1] == ["a", "b", "c"]


async def test_messages_for_a_cancelled_turn_do_not_reach_the_next(
    ours: BuiltinAgent,
) -> None:
    script = [Turn(calls=[Call("shell", {"command": "sleep 300"})]), call("list_dir"), say("ok")]
    async with ours.session(script, policy="all") as session:
        turn = session.prompt("begin")
        async for event in turn:
            if isinstance(event, ToolUse):
                session.steer("faster")
                session.follow_up("and more")
                turn.cancel()
        result = await session.run("something else")
    assert result.ok
    output = [text for request in ours.requests for text in request.texts]
    assert "faster" not in output
    assert "and more" not in output


async def test_steering_an_agent_that_cannot_be_steered_is_an_error(ours: BuiltinAgent) -> None:
    run_options = scripted_options(ours.workspace, env={"SCRIPT": GOOD})
    async with corral.session("gemini-cli", **run_options) as session:
        session.prompt("begin")
        with pytest.raises(corral.errors.ConfigError, match="cannot be steered"):
            session.steer("left")
        with pytest.raises(corral.errors.ConfigError, match="cannot be steered"):
            session.follow_up("left")
