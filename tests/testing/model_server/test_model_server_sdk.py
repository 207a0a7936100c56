"""The google-genai SDK reads from the server what the script contains."""

# The SDK is typed in part only (images are Pillow's, which is not installed).
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from corral.testing import Call, Expect, Message, ModelServer, ToolResult, Turn, call, fail, say

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own source warns when it is first compiled
    from google.genai import Client, errors, types

MODEL = "gemini-2.5-flash"


@contextmanager
def client(
    server: ModelServer, lane: str | None = None, key: str = "k"
) -> Generator[Client, None, None]:
    url = server.lane(lane).url if lane else server.url
    made = Client(api_key=key, http_options=types.HttpOptions(base_url=url))
    try:
        yield made
    finally:
        made.close()


def ask(server: ModelServer, text: str = "hi") -> types.GenerateContentResponse:
    with client(server) as sdk:
        return sdk.models.generate_content(model=MODEL, contents=text)


def stream(server: ModelServer, text: str = "hi") -> list[types.GenerateContentResponse]:
    with client(server) as sdk:
        return list(sdk.models.generate_content_stream(model=MODEL, contents=text))


def parts(response: types.GenerateContentResponse) -> list[types.Part]:
    assert response.candidates
    content = response.candidates[0].content
    return content.parts or [] if content else []


def test_text_in_one_piece() -> None:
    with ModelServer([say("Do", "ne.")]) as server:
        response = ask(server)
    assert response.text == "Done."
    assert response.candidates
    assert response.candidates[0].finish_reason == types.FinishReason.STOP
    assert response.model_version == MODEL


def test_each_text_is_a_chunk_and_the_last_one_ends_the_stream() -> None:
    with ModelServer([say("Do", "n\u2028e", ".")]) as server:
        chunks = stream(server)
    assert [chunk.text for chunk in chunks] == ["Do", "n\u2028e", "."]
    ends = [chunk.candidates[0].finish_reason for chunk in chunks if chunk.candidates]
    assert ends == [None, None, types.FinishReason.STOP]


def test_a_stream_without_sse_is_a_json_array() -> None:
    with ModelServer([say("Do", "ne."), fail(503)]) as server:
        url = f"{server.url}/v1beta/models/{MODEL}:streamGenerateContent"
        request = urllib.request.Request(url, b"{}", {"x-goog-api-key": "k"}, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers["Content-Type"] == "application/json; charset=UTF-8"
            chunks = json.load(answer)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        with caught.value as refused:
            assert [entry["error"]["code"] for entry in json.load(refused)] == [503]
    assert [c["candidates"][0]["content"]["parts"][0]["text"] for c in chunks] == ["Do", "ne."]


def test_parallel_calls_of_one_function_keep_ids_and_order() -> None:
    calls = [Call("read", {"n": 1}, "c1"), Call("read", {"n": 2}, "c2"), Call("glob", {"p": [1]})]
    with ModelServer([Turn(text="Reading.", calls=calls)] * 2) as server:
        complete, chunks = ask(server), stream(server)
    for made in (complete.function_calls, chunks[-1].function_calls):
        assert made is not None
        assert [(c.name, c.args, c.id) for c in made] == [(c.name, c.args, c.id) for c in calls]


def test_thoughts_come_first_and_the_signature_on_the_first_call() -> None:
    calls = [Call("a"), Call("b")]
    turn = Turn(thoughts=["Hm", "So"], text="I call.", calls=calls, signature="sig")
    with ModelServer([turn] * 2) as server:
        complete = parts(ask(server))
        chunks = [part for chunk in stream(server) for part in parts(chunk)]
    for got in (complete, chunks):
        assert [(p.text, p.thought) for p in got[:3]] == [
            ("Hm", True),
            ("So", True),
            ("I call.", None),
        ]
        assert [part.thought_signature for part in got] == [None, None, None, b"sig", None]


def test_thoughts_without_calls_are_signed_on_the_last_text() -> None:
    with ModelServer([Turn(thoughts="Hm", text=["Do", "ne."])]) as server:
        got = [part for chunk in stream(server) for part in parts(chunk)]
    assert [part.thought_signature for part in got] == [None, None, b"scripted-signature"]


def test_usage_is_sent_as_scripted() -> None:
    usage = {"input": 100, "output": 20, "cached": 11, "thoughts": 5}
    with ModelServer([say("Done.", usage=usage)]) as server:
        got = stream(server)[-1].usage_metadata
    assert got is not None
    assert (got.prompt_token_count, got.candidates_token_count) == (100, 20)
    assert (got.cached_content_token_count, got.thoughts_token_count) == (11, 5)
    assert got.total_token_count == 125


def test_usage_is_estimated_from_the_text_or_left_out() -> None:
    with ModelServer([say("x" * 40), Turn(text="x", usage=False)]) as server:
        counted, none = ask(server, "y" * 80), ask(server)
    assert counted.usage_metadata is not None
    assert counted.usage_metadata.prompt_token_count == 20
    assert counted.usage_metadata.candidates_token_count == 10
    assert none.usage_metadata is None


@pytest.mark.parametrize("finish", ["MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", None])
def test_finish_reasons(finish: str | None) -> None:
    with ModelServer([Turn(finish=finish)]) as server:
        response = ask(server)
    assert response.candidates
    assert response.candidates[0].finish_reason == finish
    assert parts(response) == []


def test_a_blocked_prompt_has_feedback_and_no_candidate() -> None:
    with ModelServer([Turn(block_reason="SAFETY", repeat=2)]) as server:
        answers = [ask(server), *stream(server)]
    for response in answers:
        assert response.candidates is None
        assert response.prompt_feedback is not None
        assert response.prompt_feedback.block_reason == types.BlockedReason.SAFETY


def test_a_429_has_the_delay_and_the_quota() -> None:
    with (
        ModelServer([fail(429, "Slow down.", retry_after=1.5, quota_id="PerDay")]) as server,
        pytest.raises(errors.ClientError) as caught,
    ):
        stream(server)
    error = caught.value
    assert (error.code, error.status, error.message) == (429, "RESOURCE_EXHAUSTED", "Slow down.")
    quota, retry = cast("Any", error.details)["error"]["details"]
    assert quota["@type"] == "type.googleapis.com/google.rpc.QuotaFailure"
    assert quota["violations"][0]["quotaId"] == "PerDay"
    assert retry == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}
    assert error.response.headers["Retry-After"] == "2"


def test_tokens_are_counted_without_a_turn_unless_the_script_has_one() -> None:
    counts = Turn(for_method="countTokens", usage={"input": 7})
    with ModelServer([say("kept")]) as server, client(server) as sdk:
        assert sdk.models.count_tokens(model=MODEL, contents="x" * 40).total_tokens == 10
        assert ask(server).text == "kept"
    with ModelServer([counts]) as server, client(server) as sdk:
        assert sdk.models.count_tokens(model=MODEL, contents="x" * 40).total_tokens == 7


def test_models_are_listed_and_any_name_can_be_used() -> None:
    with ModelServer() as server, client(server) as sdk:
        names = [model.name for model in sdk.models.list()]
        assert "models/gemini-2.5-flash" in names
        assert sdk.models.get(model="gemini-99").name == "models/gemini-99"
        assert server.requests == []


def test_vertex_paths() -> None:
    with ModelServer([say("vertex")] * 2) as server:
        options = types.HttpOptions(base_url=server.url)
        sdk = Client(vertexai=True, api_key="k", http_options=options)
        try:
            assert sdk.models.generate_content(model=MODEL, contents="x").text == "vertex"
        finally:
            sdk.close()
        assert server.requests[0].path.startswith("/v1beta1/publishers/google/models/")
        path = "/v1beta1/projects/p/locations/l/publishers/google/models/gemini-x:generateContent"
        bearer = {"Authorization": "Bearer t"}
        request = urllib.request.Request(server.url + path, b"{}", bearer, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"vertex" in answer.read()
        assert server.requests[1].model == "gemini-x"


def test_a_request_has_what_the_client_sent() -> None:
    read = types.FunctionDeclaration(name="read", description="d")
    config = types.GenerateContentConfig(
        system_instruction="Be brief.", tools=[types.Tool(function_declarations=[read])]
    )
    contents: list[types.Content] = [
        types.Content(
            role="user",
            parts=[
                types.Part(text="<session_context>\nfiles"),
                types.Part(text="one"),
                types.Part(text="two"),
            ],
        ),
        types.Content(
            role="model",
            parts=[
                types.Part(text="hm", thought=True),
                types.Part(
                    function_call=types.FunctionCall(name="read", args={"n": 1}, id="c1"),
                    thought_signature=b"sig",
                ),
            ],
        ),
        types.Content(
            role="user",
            parts=[
                types.Part(
                    function_response=types.FunctionResponse(
                        name="read", response={"output": "a"}, id="c1"
                    )
                )
            ],
        ),
    ]
    with ModelServer([say("ok")]) as server, client(server, "x y", key="sesame") as sdk:
        sdk.models.generate_content(model=MODEL, contents=list(contents), config=config)
        (request,) = server.lane("x y").requests
    assert (request.lane, request.method, request.model) == ("x y", "generateContent", MODEL)
    assert re.fullmatch(r"/lane/x%20y/v1\w*/models/[^/]*:generateContent", request.path)
    assert request.system == "Be brief."
    assert request.tools == ("read",)
    assert request.texts == ["<session_context>\nfiles", "one", "two"]
    assert request.last_text == "one\ntwo"
    assert request.tool_results == [("read", {"output": "a"})]
    assert request.tool_calls == [Call("read", {"n": 1}, "c1")]
    assert request.history[1:] == (
        Message(
            role="model",
            thoughts=("hm",),
            calls=(Call("read", {"n": 1}, "c1"),),
            signatures=("sig",),
        ),
        Message(role="user", results=(ToolResult("read", {"output": "a"}, "c1"),)),
    )
    assert request.headers["x-goog-api-key"] == "sesame"
    assert "sesame" not in repr(request) + repr(request.headers)


def test_a_late_error_comes_inside_the_stream() -> None:
    turn = Turn(text=("Do", "ne."), status=503, late=True, message="Too late.")
    output: list[str | None] = []
    with ModelServer([turn] * 2) as server, client(server) as sdk:
        with pytest.raises(errors.ServerError, match=r"Too late\."):
            for chunk in sdk.models.generate_content_stream(model=MODEL, contents="hi"):
                output.append(chunk.text)
                assert chunk.candidates
                assert chunk.candidates[0].finish_reason is None
        assert output == ["Do", "ne."]
        with pytest.raises(errors.ServerError, match=r"Too late\."):
            ask(server)


# The SDK derives from aiohttp's session, which aiohttp would rather it did not.
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
def test_a_conversation_over_one_async_client() -> None:
    async def talk() -> list[str | None]:
        async with ModelServer([call("read", n=1), say("Done.")]) as server:
            options = types.HttpOptions(base_url=server.url)
            async with Client(api_key="k", http_options=options).aio as sdk:
                first = await sdk.models.generate_content(model=MODEL, contents="go")
                assert first.function_calls
                second = await sdk.models.generate_content_stream(model=MODEL, contents="go")
                return [chunk.text async for chunk in second]

    assert asyncio.run(talk()) == ["Done."]


def test_an_unexpected_request_is_refused_and_recorded() -> None:
    expect = Expect(
        tools="read", no_tools="rm", text="please", no_text="hi", results="glob", model="pro"
    )
    with ModelServer([Turn(text="x", expect=expect), say("next")]) as server:
        with pytest.raises(errors.ClientError) as caught:
            ask(server, "hi there")
        assert caught.value.code == 400
        assert ask(server).text == "next"
        (failure,) = server.failures
    for part in (
        "no tool 'read' is declared",
        "text 'please' is missing",
        "text 'hi' is present",
        "no result of 'glob'",
        f"the model is '{MODEL}', not 'pro'",
        "(lane default)",
    ):
        assert part in str(caught.value.message)
        assert part in failure


def test_an_exhausted_script_is_a_400_with_the_reason() -> None:
    with ModelServer([say("one")]) as server:
        ask(server)
        with pytest.raises(errors.ClientError) as caught:
            ask(server)
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
        assert (
            caught.value.message
            == "script exhausted after 1 turn; add one, or set restart (lane default)"
        )
        assert len(server.failures) == 1
