"""How a run of the built-in agent fails: reported, retried, or raised."""

from __future__ import annotations

import pytest
from support.builtin_agent import (
    KEY,
    MODELS,
    BuiltinAgent,
    events_of,
    run_command,
    tool_outcomes,
    warning_codes,
)

import corral
from corral._builtin.loop import MALFORMED_ADVICE
from corral.events import Error, Text
from corral.result import result_from_events
from corral.testing import Call, Turn, call, fail, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)

WIRES = ["gemini", "anthropic", "openai", "chat"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_key_ends_the_run(ours: BuiltinAgent, wire: str) -> None:
    result = await ours.run([fail(401, "no such key")], wire=wire, retries=2)
    assert result.error is not None
    assert (result.status, result.error.code) == ("error", "authentication")
    assert len(ours.requests) == 1
    with pytest.raises(corral.errors.AuthenticationFailed):
        result.raise_for_status()


@pytest.mark.deep
async def test_the_command_line_exits_as_for_any_agent(ours: BuiltinAgent) -> None:
    code, _, reported = await run_command(ours, [fail(401, "no such key")])
    assert code == 6, reported
    code, out, reported = await run_command(ours, [say("All ", "done.")])
    assert (code, out) == (0, "All done.\n"), reported


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_temporary_errors_are_retried_with_a_warning(
    ours: BuiltinAgent, wire: str, status: int
) -> None:
    script = [fail(status, "busy", retry_after=0.01), say("ok")]
    events = await ours.events(script, wire=wire, retries=1)
    assert result_from_events(events).ok
    (code,) = warning_codes(events)
    assert code in ("rate_limit", "server")
    assert len(ours.requests) == 2


async def test_an_attempt_is_an_attempt(ours: BuiltinAgent) -> None:
    result = await ours.run([fail(500, "down", retry_after=0.01, times="forever")], retries=1)
    assert result.error is not None
    assert result.error.code == "server"
    assert len(ours.requests) == 2


@pytest.mark.parametrize("cut", [0, 1])
async def test_a_connection_that_is_always_cut_is_retried_as_configured(
    ours: BuiltinAgent, cut: int
) -> None:
    result = await ours.run([Turn(thoughts="hm", text="x", cut=cut, repeat="forever")], retries=1)
    assert not result.ok
    assert len(ours.requests) == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_cut_before_any_text_is_requested_again(
    ours: BuiltinAgent, wire: str
) -> None:
    script = [Turn(thoughts="hm", text="lost", cut=1), say("ok")]
    events = await ours.events(script, wire=wire, retries=1)
    result = result_from_events(events)
    assert (result.status, result.text) == ("success", "ok")
    assert len(ours.requests) == 2
    assert len(warning_codes(events)) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_cut_after_text_is_incomplete(ours: BuiltinAgent, wire: str) -> None:
    script = [Turn(text=["half ", "an answer"], cut=1), say("never")]
    result = await ours.run(script, wire=wire, retries=2)
    assert (result.status, result.text) == ("incomplete", "half ")
    assert len(ours.requests) == 1


@pytest.mark.parametrize("wire", ["gemini", "anthropic", "openai"])
async def test_an_error_in_the_stream_before_any_text_is_retried(
    ours: BuiltinAgent, wire: str
) -> None:
    script = [Turn(thoughts="hm", status=503, late=True, message="overloaded"), say("ok")]
    events = await ours.events(script, wire=wire, retries=1)
    assert result_from_events(events).ok, result_from_events(events).error
    assert [event.delta for event in events_of(events, Text)] == ["ok"]


async def test_a_stream_without_an_end_is_incomplete(ours: BuiltinAgent) -> None:
    result = await ours.run([Turn(text="half", finish=None)])
    assert result.status == "incomplete"


async def test_a_refused_prompt_is_a_content_error(ours: BuiltinAgent) -> None:
    result = await ours.run([Turn(block_reason="SAFETY")])
    assert result.error is not None
    assert (result.status, result.error.code) == ("error", "content_refused")


async def test_a_filtered_answer_is_a_content_error(ours: BuiltinAgent) -> None:
    result = await ours.run([say("so ", finish="SAFETY")])
    assert result.error is not None
    assert result.error.code == "content_refused"


async def test_an_answer_cut_at_the_output_limit_is_an_error(ours: BuiltinAgent) -> None:
    result = await ours.run([say("so ", finish="MAX_TOKENS")])
    assert result.error is not None
    assert result.error.code == "context_length"
    assert "MAX_TOKENS" in result.error.message


@pytest.mark.parametrize("wire", WIRES)
async def test_an_empty_answer_is_an_error_and_the_session_continues(
    ours: BuiltinAgent, wire: str
) -> None:
    run_options = ours.options([Turn(), say("ok")], wire)
    async with corral.session(**run_options) as session:
        first = await session.run("one")
        second = await session.run("two")
    assert first.error is not None
    assert first.error.code == "empty_answer"
    assert second.final_text == "ok"
    assert [m.role for m in ours.requests[1].history if not (m.texts or m.calls)] == []


async def test_a_malformed_call_is_reported_to_the_model_twice_and_then_an_error(
    ours: BuiltinAgent,
) -> None:
    botched = Turn(finish="MALFORMED_FUNCTION_CALL", repeat="forever")
    events = await ours.events([botched])
    result = result_from_events(events)
    assert result.error is not None
    assert (result.status, result.error.code) == ("error", "invalid_request")
    assert len(ours.requests) == 3
    assert ours.requests[-1].last_text.count(MALFORMED_ADVICE) == 2
    assert warning_codes(events) == ["malformed_call"] * 2


async def test_a_malformed_call_that_is_made_again_is_run(ours: BuiltinAgent) -> None:
    script = [Turn(finish="MALFORMED_FUNCTION_CALL"), call("list_dir"), say("ok")]
    events = await ours.events(script)
    assert tool_outcomes(events) == [("list_dir", "success")]
    assert result_from_events(events).ok


async def test_a_call_of_a_malformed_answer_gets_a_result_and_is_not_run(
    ours: BuiltinAgent,
) -> None:
    half = Turn(calls=[Call("shell", {"command": "touch ran"})], finish="MALFORMED_FUNCTION_CALL")
    events = await ours.events([half, say("ok")], policy="all")
    assert result_from_events(events).ok
    assert tool_outcomes(events) == []
    assert not (ours.workspace / "ran").exists()
    last = ours.requests[-1]
    assert [name for name, _ in last.tool_results] == [made.name for made in last.tool_calls]
    assert len(last.tool_results) == 1


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("gemini", "GEMINI_API_KEY"),
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("openai", "OPENAI_API_KEY"),
    ],
)
async def test_a_missing_key_is_an_early_error_that_names_the_variable(
    ours: BuiltinAgent, wire: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(corral.errors.MissingKey, match=name):
        await corral.run(MODELS[wire], "do it", cwd=ours.workspace)
    assert not (ours.workspace.parent / "corral-home" / "sessions").exists()


async def test_an_unknown_vendor_is_named(ours: BuiltinAgent) -> None:
    with pytest.raises(corral.errors.UnknownProvider, match="nobody"):
        await corral.run("nobody:model", "do it", cwd=ours.workspace)


async def test_the_built_in_agent_without_a_model_is_an_error(ours: BuiltinAgent) -> None:
    with pytest.raises(corral.errors.ConfigError, match="needs a model"):
        await corral.run("corral", "do it", cwd=ours.workspace)


async def test_two_models_are_an_error(ours: BuiltinAgent) -> None:
    with pytest.raises(corral.errors.ConfigError, match="two models"):
        await corral.run(MODELS["gemini"], "do it", model="openai:gpt-5", cwd=ours.workspace)


async def test_a_function_may_not_have_the_name_of_a_built_in_tool(ours: BuiltinAgent) -> None:
    def shell() -> str:
        return ""

    with pytest.raises(corral.errors.ConfigError, match="shell is already the name"):
        await ours.events([say("never")], tools=[shell])


async def test_an_error_contains_no_key(ours: BuiltinAgent) -> None:
    events = await ours.events([fail(400, f"bad key {KEY}, really")])
    assert KEY not in b"".join(corral.to_json(event) for event in events).decode()
    (error,) = events_of(events, Error)
    assert "bad key" in error.message


async def test_a_model_that_hangs_in_the_middle_is_an_idle_timeout(ours: BuiltinAgent) -> None:
    result = await ours.run([hang("a word")], idle_timeout=0.5)
    assert (result.status, result.text) == ("timeout", "a word")
