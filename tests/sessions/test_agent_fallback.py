"""At a limit, the next agent continues."""

from __future__ import annotations

from secrets import token_hex

import pytest
from support.builtin_agent import BuiltinAgent, model_env, run_command

import corral
from corral.events import Event, Init
from corral.run_kwargs import RunKwargs
from corral.sessions.fallback import CONTINUE
from corral.testing import Lane, Turn, call, fail, say

pytest_plugins = ("support.builtin_agent_fixture",)

NEXT = "fallback:openai:gpt-5"


def options_for(ours: BuiltinAgent, *script: Turn) -> tuple[RunKwargs, Lane]:
    """The options of a run whose first model has a limit, and the lane of the second model."""
    (ours.workspace / "a.txt").write_text("the sky is green")
    limited = [call("read_file", path="a.txt"), fail(429, "slow down", retry_after=600)]
    given: RunKwargs = ours.options(limited)
    lane = ours.add_lane(list(script))
    # Limits are shared by all runs of this process with the same key.
    keys = dict.fromkeys(("GEMINI_API_KEY", "OPENAI_API_KEY"), f"key-{token_hex(16)}")
    given["env"] = {**given.get("env", {}), **model_env(lane, "openai"), **keys}
    given["on_limit"] = NEXT
    return given, lane


async def test_the_next_agent_continues_the_conversation(ours: BuiltinAgent) -> None:
    options, lane = options_for(ours, say("it is green"))
    events: list[Event] = []
    result = await corral.run("corral", "Which colour?", on_event=events.append, **options)
    assert result.ok, result.error
    assert result.text == "it is green"
    models = [event.model for event in events if isinstance(event, Init)]
    assert models == ["gemini:gemini-2.5-flash", "openai:gpt-5"]
    (request,) = lane.requests
    sent = str(request.body)
    assert "Which colour?" in sent
    assert "the sky is green" in sent
    assert CONTINUE in sent


async def test_if_all_are_limited_the_last_error_counts(ours: BuiltinAgent) -> None:
    options, _ = options_for(ours, fail(429, "also here", retry_after=600, times="forever"))
    result = await corral.run("corral", "Which colour?", **options)
    assert result.error is not None
    assert result.error.code == "rate_limit"
    assert "also here" in result.error.message


async def test_another_error_does_not_fall_back(ours: BuiltinAgent) -> None:
    options, lane = options_for(ours, say("never"))
    refused = ours.add_lane([fail(401, "no such key")])
    options["env"] = {
        **model_env(refused, "gemini"),
        **model_env(lane, "openai"),
        "GEMINI_API_KEY": f"key-{token_hex(16)}",
    }
    result = await corral.run("corral", "Which colour?", **options)
    assert result.error is not None
    assert result.error.code == "authentication"
    assert not lane.requests


async def test_an_agent_that_cannot_be_used_is_refused_before_anything_is_spent(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    options, lane = options_for(ours, say("never"))
    options["on_limit"] = "fallback:openai:gpt-5,gemini-cli"
    options["allowed_tools"] = ["no-such-tool"]
    with pytest.raises(corral.CorralError):
        await corral.run("corral", "x", **options)
    assert not lane.requests


@pytest.mark.whole_program
async def test_the_command_line_falls_back(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lane = options_for(ours, say("it is green"))
    for name, value in model_env(lane, "openai").items():
        monkeypatch.setenv(name, value)
    limited = [fail(429, "slow down", retry_after=600)]
    code, out, reported = await run_command(ours, limited, "--on-limit", NEXT)
    assert (code, out) == (0, "it is green\n"), reported
    assert len(lane.requests) == 1
