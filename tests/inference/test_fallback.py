"""Several models for one call, keys of one call, and the functions for code that is not async."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from corral import errors, models
from corral.testing import Call, ModelServer, Request, Turn, fail, hang, say

FIRST, SECOND, THIRD = "gemini:first", "anthropic:second", "openai:third"
KEYS = {"gemini": "key-of-gemini", "anthropic": "key-of-anthropic", "openai": "key-of-openai"}


class Vendors:
    """One scripted server for each vendor, and the options of a call that uses them."""

    def __init__(self, server: ModelServer, **scripts: Any) -> None:
        self.lanes = lanes = {name: server.lane(name, script) for name, script in scripts.items()}
        self.options: Any = {
            "api_key": KEYS,
            "base_url": {
                "gemini": lanes["gemini"].url,
                "anthropic": lanes["anthropic"].url,
                "openai": f"{lanes['openai'].url}/v1",
            },
            "retries": 0,
        }


def vendors(server: ModelServer, first: Any, second: Any, third: Any = None) -> Vendors:
    return Vendors(server, gemini=first, anthropic=second, openai=third or [say("third")])


async def answer(
    streamed: bool, given: str | Sequence[str], prompt: str, **options: Any
) -> models.Generation:
    if streamed:
        return await models.stream(given, prompt, **options).collect()
    return await models.generate(given, prompt, **options)


UNAVAILABLE = [
    (fail(503, "overloaded"), "server"),
    (fail(429, "slow down"), "rate_limit"),
    (fail(404, "no such model"), "model_not_found"),
    (fail(401, "bad key"), "authentication"),
    (fail(403, "not allowed"), "access_denied"),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("turn", "code"), UNAVAILABLE, ids=[code for _, code in UNAVAILABLE])
async def test_the_next_model_answers_if_one_is_not_available(
    turn: Turn, code: str, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer() as server:
        used = vendors(server, [turn], [say("second")])
        with caplog.at_level(logging.WARNING, "corral.models"):
            found = await answer(streamed, [FIRST, SECOND], "hi", **used.options)
    assert found.text == "second"
    assert found.response.provider == "anthropic"
    assert [(each.model, each.error.code) for each in found.fallbacks] == [(FIRST, code)]
    assert found.warnings[0].startswith(f"{FIRST} failed ({code}): ")
    assert f"{FIRST} failed ({code})" in caplog.text
    assert f"now calling {SECOND}" in caplog.text


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_invalid_request_is_raised_without_a_fallback(streamed: bool) -> None:
    async with ModelServer() as server:
        used = vendors(server, [fail(400, "bad field")], [say("never")])
        with pytest.raises(errors.InvalidRequest):
            await answer(streamed, [FIRST, SECOND], "hi", **used.options)
        assert used.lanes["anthropic"].requests == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_if_every_model_fails_the_last_error_has_the_others_as_notes(streamed: bool) -> None:
    async with ModelServer() as server:
        used = vendors(server, [fail(503, "one")], [fail(503, "two")], [fail(429, "three")])
        with pytest.raises(errors.RateLimited) as caught:
            await answer(streamed, [FIRST, SECOND, THIRD], "hi", **used.options)
    notes = caught.value.__notes__
    assert [note.split(" failed")[0] for note in notes] == [f"before: {FIRST}", f"before: {SECOND}"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_fails_after_a_tool_is_replaced_and_the_tool_is_not_run_again(
    streamed: bool,
) -> None:
    ran: list[int] = []

    def add(a: int) -> int:
        """Add one."""
        ran.append(a)
        return a + 1

    async with ModelServer() as server:
        first = [Turn(calls=[Call("add", {"a": 1})]), fail(503, "overloaded")]
        used = vendors(server, first, [say("it is 2")])
        found = await answer(
            streamed, [FIRST, SECOND], "add", tools=[add], max_tool_rounds=3, **used.options
        )
        (request,) = used.lanes["anthropic"].requests
    assert (found.text, ran) == ("it is 2", [1])
    assert [json for _, json in request.tool_results] == ["2"]
    assert [each.model for each in found.fallbacks] == [FIRST]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_step_that_takes_too_long_is_given_to_the_next_model(streamed: bool) -> None:
    async with ModelServer() as server:
        used = vendors(server, [hang()], [say("second")])
        found = await answer(streamed, [FIRST, SECOND], "hi", step_timeout=0.5, **used.options)
    assert found.text == "second"
    assert [each.error.code for each in found.fallbacks] == ["total_timeout"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_timeout_of_the_call_is_raised(streamed: bool) -> None:
    async with ModelServer() as server:
        used = vendors(server, [hang()], [say("never")])
        with pytest.raises(errors.TotalTimeout):
            await answer(streamed, [FIRST, SECOND], "hi", timeout=0.5, **used.options)
        assert used.lanes["anthropic"].requests == []


async def test_a_stream_that_has_started_stays_with_its_model() -> None:
    async with ModelServer() as server:
        used = vendors(server, [hang("started")], [say("never")])
        stream = models.stream([FIRST, SECOND], "hi", step_timeout=2, **used.options)
        seen: list[str] = []
        with pytest.raises(errors.TotalTimeout):
            async for event in stream:
                seen.append(event.text if isinstance(event, models.TextDelta) else "")
        assert "started" in seen
        assert used.lanes["anthropic"].requests == []


async def test_a_typed_value_comes_from_the_next_model_too() -> None:
    async with ModelServer() as server:
        used = vendors(server, [fail(503, "overloaded")], [say('{"value": [1, 2]}')])
        found = await models.generate_object([FIRST, SECOND], list[int], "two", **used.options)
    assert found.output == [1, 2]
    assert [each.model for each in found.fallbacks] == [FIRST]


async def test_a_missing_key_of_a_fallback_is_an_error_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    async with ModelServer() as server:
        used = vendors(server, [say("never")], [say("never")])
        options: Any = {**used.options, "api_key": {"gemini": "k"}}
        with pytest.raises(errors.MissingKey, match="Anthropic"):
            await models.generate([FIRST, SECOND], "hi", **options)
        with pytest.raises(errors.ConfigError, match="list of models is empty"):
            await models.generate([], "hi", **options)
        assert used.lanes["gemini"].requests == []


async def test_the_key_of_a_call_is_sent_and_is_not_in_an_error() -> None:
    async with ModelServer([say("hello"), fail(400, "the key sk-canary-12345 is bad")]) as server:
        options: Any = {"api_key": "sk-canary-12345", "base_url": server.url}
        await models.generate("gemini:x", "hi", **options)
        with pytest.raises(errors.InvalidRequest) as caught:
            await models.generate("gemini:x", "hi", **options)
        sent = server.requests[0].headers["x-goog-api-key"]
    assert sent == "sk-canary-12345"
    assert "sk-canary-12345" not in str(caught.value)


async def test_one_key_for_models_of_two_vendors_is_an_error() -> None:
    with pytest.raises(
        errors.ConfigError, match="one api_key cannot be for several vendors"
    ) as seen:
        await models.generate([FIRST, SECOND], "hi", api_key="k")
    assert "api_key={'anthropic': '…', 'gemini': '…'}" in str(seen.value)
    with pytest.raises(errors.UnknownProvider, match="gemni"):
        await models.generate(FIRST, "hi", api_key={"gemni": "k"})


async def test_plain_dicts_are_a_conversation() -> None:
    async with ModelServer([say("hello")]) as server:
        found = await models.generate(
            "gemini:x",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Say hello"},
                models.Message.assistant("What?"),
                {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
            ],
            api_key="key",
            base_url=server.url,
        )
        (request,) = server.requests
    assert found.text == "hello"
    assert request.texts[-3:] == ["Say hello", "What?", "Hello!"]


def serve(request: Request) -> Turn:
    return say('{"value": ["red"]}') if "color" in request.last_text else say("hel", "lo")


def test_code_that_is_not_async_has_its_own_functions() -> None:
    with ModelServer(serve) as server:
        options: Any = {"api_key": "key", "base_url": server.url}
        assert models.generate_sync("gemini:x", "hi", **options).text == "hello"
        typed = models.generate_object_sync("gemini:x", list[str], "color", **options)
        assert typed.output == ["red"]
        stream = models.stream_sync("gemini:x", "hi", **options)
        assert list(stream.text()) == ["hel", "lo"]
        assert stream.generation is not None
        assert stream.generation.text == "hello"
        with models.stream_sync("gemini:x", "hi", **options) as left:
            assert next(iter(left)).__class__ is models.Start
        assert models.stream_sync("gemini:x", "hi", **options).collect().text == "hello"
        with pytest.raises(errors.MissingKey):
            models.stream_sync("anthropic:x", "hi", api_key={}).collect()


async def test_a_stream_for_code_that_is_not_async_can_be_read_in_a_thread() -> None:
    async with ModelServer(serve) as server:
        stream = models.stream_sync("gemini:x", "hi", api_key="key", base_url=server.url)
        assert await asyncio.to_thread(lambda: list(stream.text())) == ["hel", "lo"]
