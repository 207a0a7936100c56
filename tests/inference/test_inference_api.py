"""The public functions for models: checks, tools, streams, cleanup."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.raw_server import RawConnection, raw_server

from corral import errors, models
from corral.testing import Call, ModelServer, Request, Turn, call, hang, say

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its source has invalid escapes
    from google.genai import Client as Oracle

MODEL = "gemini:gemini-2.5-flash"


@asynccontextmanager
async def scripted(
    script: Any, **options: Any
) -> AsyncGenerator[tuple[ModelServer, models.Client], None]:
    async with ModelServer(script) as server:
        made = models.Client(
            keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={}, **options
        )
        async with made:
            yield server, made


REFUSED: list[tuple[dict[str, Any], type[errors.CorralError], str]] = [
    ({"prompt": "a", "messages": [models.Message.user("b")]}, errors.ConfigError, "both"),
    ({}, errors.ConfigError, "there is no prompt"),
    ({"prompt": " "}, errors.ConfigError, "empty"),
    ({"prompt": []}, errors.ConfigError, "empty"),
    ({"messages": []}, errors.ConfigError, "empty"),
    ({"messages": ["text"]}, errors.ConfigError, "must contain Message or dict"),
    ({"prompt": "a", "temprature": 1}, errors.ConfigError, "did you mean 'temperature'"),
    ({"prompt": "a", "max_tokens": 0}, errors.ConfigError, "max_tokens"),
    ({"prompt": "a", "timeout": 0}, errors.ConfigError, "timeout"),
    ({"prompt": "a", "max_tool_rounds": -1}, errors.ConfigError, "max_tool_rounds"),
    ({"prompt": "a", "tool_choice": "nobody"}, errors.ConfigError, "not a tool of this call"),
    ({"prompt": "a", "model": "gemni:x"}, errors.UnknownProvider, "gemni"),
    ({"prompt": "a", "model": "gemini-2.5-flash"}, errors.ConfigError, "no vendor prefix"),
]


@pytest.mark.parametrize(("given", "kind", "expected"), REFUSED)
async def test_invalid_requests_are_refused_before_anything_is_sent(
    given: dict[str, Any], kind: type[errors.CorralError], expected: str
) -> None:
    async with scripted([say("never")]) as (server, client):
        options: Any = {"model": MODEL, **given, "client": client}
        with pytest.raises(kind, match=expected):
            await models.generate(**options)
        with pytest.raises(kind, match=expected):
            await models.stream(**options).collect()
        assert server.requests == []


async def test_a_missing_key_names_its_variable() -> None:
    async with models.Client(environ={}) as client:
        with pytest.raises(errors.MissingKey) as caught:
            await models.generate(MODEL, "hi", client=client)
    assert "GEMINI_API_KEY" in str(caught.value)


async def test_from_env_finds_the_vendors_whose_key_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    async with models.Client.from_env() as client:
        assert "gemini" in client.providers
        assert not {"anthropic", "openai", "vertex"} & set(client.providers)


@pytest.mark.parametrize(("rounds", "asked", "ran"), [(0, 1, 0), (1, 2, 1), (2, 3, 2)])
@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_run_for_at_most_the_given_rounds(
    rounds: int, asked: int, ran: int, streamed: bool
) -> None:
    seen: list[int] = []

    def step(n: int) -> str:
        seen.append(n)
        return "ok"

    async with scripted([call("step", n=1), call("step", n=2), say("end")]) as (server, client):
        options: Any = {"client": client, "tools": [step], "max_tool_rounds": rounds}
        if streamed:
            answer = await models.stream(MODEL, "go", **options).collect()
        else:
            answer = await models.generate(MODEL, "go", **options)
        assert len(server.requests) == asked
    assert len(seen) == ran
    assert bool(answer.tool_calls) == (rounds < 2)


async def test_stop_when_sees_the_steps_and_ends_the_rounds() -> None:
    def step(n: int) -> str:
        return f"got {n}"

    def enough(steps: Sequence[models.Step]) -> bool:
        return steps[-1].results[0].content == "got 1"

    async with scripted([call("step", n=1), say("never")]) as (server, client):
        answer = await models.generate(
            MODEL, "go", client=client, tools=[step], max_tool_rounds=5, stop_when=enough
        )
        assert len(server.requests) == 1
    assert [result.content for result in answer.steps[-1].results] == ["got 1"]
    assert answer.tool_calls == ()  # it was run


async def test_tools_that_fail_are_error_results_in_order() -> None:
    def broken(n: int) -> str:
        raise ValueError("no air")

    calls = [Call("broken", {"n": 1}), Call("unknown", {}), Call("broken", {"n": "text"})]

    def answer_with(request: Request) -> Turn:
        return say("end") if request.history[-1].results else Turn(calls=calls)

    async with scripted(answer_with) as (_, client):
        answer = await models.generate(MODEL, "go", client=client, tools=[broken])
    results = answer.steps[0].results
    assert [result.is_error for result in results] == [True, True, True]
    contents = [str(result.content) for result in results]
    assert "no air" in contents[0]
    assert "no tool 'unknown'" in contents[1]
    assert "do not fit" in contents[2]


async def test_calls_of_a_tool_spec_are_left_to_the_caller() -> None:
    async with scripted([call("look", at="sky")]) as (server, client):
        answer = await models.generate(
            MODEL, "go", client=client, tools=[models.ToolSpec("look", "looks")]
        )
        assert len(server.requests) == 1
    assert [(made.name, made.arguments) for made in answer.tool_calls] == [("look", {"at": "sky"})]


@pytest.mark.parametrize("name", ["timeout", "step_timeout"])
@pytest.mark.parametrize("turn", [hang(), Turn(text=("a", "b"), hang="after")])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_deadline_ends_the_call(name: str, turn: Turn, streamed: bool) -> None:
    async with scripted([turn]) as (_, client), asyncio.timeout(20):
        options: Any = {"client": client, name: 0.2}
        with pytest.raises(errors.TotalTimeout, match=name):
            if streamed:
                await models.stream(MODEL, "go", **options).collect()
            else:
                await models.generate(MODEL, "go", **options)


@asynccontextmanager
async def endless(gone: asyncio.Event) -> AsyncGenerator[str, None]:
    """A stream that never ends; ``gone`` is set when the reader has left."""
    chunk = b'data: {"candidates":[{"content":{"parts":[{"text":"x"}]}}]}\r\n\r\n'

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + chunk)
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("how", ["break", "close", "cancel"])
async def test_leaving_a_stream_closes_its_connection(how: str) -> None:
    gone, started = asyncio.Event(), asyncio.Event()
    async with endless(gone) as url, asyncio.timeout(20):
        async with models.Client(
            keys={"gemini": "k"}, base_urls={"gemini": url}, environ={}
        ) as client:

            async def read() -> None:
                async with models.stream(MODEL, "go", client=client) as events:
                    async for event in events:
                        if isinstance(event, models.TextDelta):
                            started.set()
                            if how == "break":
                                break
                            if how == "close":
                                events.close()
                                return

            task = asyncio.create_task(read())
            await started.wait()
            if how == "cancel":
                task.cancel()
            await asyncio.wait([task])
            await gone.wait()  # while the client itself is still open
        await asyncio.sleep(0)


async def test_a_hundred_calls_share_one_client() -> None:
    async with scripted([Turn(text="yes", repeat=100)]) as (server, client):
        answers = await asyncio.gather(
            *(models.generate(MODEL, str(n), client=client) for n in range(100))
        )
        assert [answer.text for answer in answers] == ["yes"] * 100
        assert len({request.last_text for request in server.requests}) == 100


def test_the_default_client_is_closed_with_the_loop() -> None:
    program = (
        "import asyncio\nfrom corral import models\n"
        f"print(asyncio.run(models.generate({MODEL!r}, 'hi')).text)\n"
    )
    with ModelServer([say("hello")]) as server:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={"GEMINI_API_KEY": "k", "GEMINI_BASE_URL": server.url},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (ended.stdout, ended.stderr) == ("hello\n", "")


class Noted(models.Middleware):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    async def complete(self, request: models.Request, call: Any) -> models.Response:
        self.seen.append(f"{self.name} in")
        response: models.Response = await call(request)
        self.seen.append(f"{self.name} out")
        return response

    async def stream(self, request: models.Request, call: Any) -> AsyncIterator[models.StreamEvent]:
        self.seen.append(f"{self.name} in")
        async for event in call(request):
            yield event
        self.seen.append(f"{self.name} out")


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_first_middleware_is_the_outermost(streamed: bool) -> None:
    seen: list[str] = []
    layers = [Noted("a", seen), Noted("b", seen)]
    async with scripted([say("x")], middleware=layers) as (_, client):
        if streamed:
            await models.stream(MODEL, "hi", client=client).collect()
        else:
            await models.generate(MODEL, "hi", client=client)
    assert seen == ["a in", "b in", "b out", "a out"]


@pytest.mark.parametrize(
    "turn",
    [
        say("Hel", "lo"),
        Turn(thoughts="hm", text=("a", "b"), signature="s"),
        Turn(text="x", calls=[Call("f", {"a": 1}, "i"), Call("f", {"a": 2})]),
        Turn(text="x", finish="MAX_TOKENS", usage={"input": 3, "output": 4, "thoughts": 2}),
        Turn(text="x", usage=False),
    ],
)
async def test_streamed_and_completed_are_equal(turn: Turn) -> None:
    async with scripted([turn, turn]) as (_, client):
        full = (await models.generate(MODEL, "hi", client=client, max_tool_rounds=0)).response
        streamed = (
            await models.stream(MODEL, "hi", client=client, max_tool_rounds=0).collect()
        ).response
    assert full.raw == json.loads(full.body)
    assert streamed.raw is None
    fields = [name for name in models.Response.__struct_fields__ if name != "body"]
    assert [getattr(full, name) for name in fields] == [getattr(streamed, name) for name in fields]


def gemini_event(text: str, **more: Any) -> bytes:
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0, **more}
    return b"data: " + json.dumps({"candidates": [candidate]}).encode()


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
async def test_a_gemini_stream_whose_last_event_has_no_blank_line_is_read(ending: bytes) -> None:
    body = gemini_event("Hel") + b"\n\n" + gemini_event("lo", finishReason="STOP") + ending
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(head, body)

    async with raw_server(talk) as server:
        async with models.Client(
            keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={}
        ) as client:
            answer = await models.stream(MODEL, "hi", client=client, retries=0).collect()
            assert (answer.text, answer.finish_reason.reason) == ("Hello", "stop")

        def by_oracle() -> str:
            oracle = Oracle(api_key="k", http_options={"base_url": server.url})
            models_of: Any = oracle.models  # the SDK's own types are partly unknown
            chunks = models_of.generate_content_stream(model="gemini-2.5-flash", contents="hi")
            text = "".join(chunk.text or "" for chunk in chunks)
            oracle.close()
            del oracle, chunks  # its end starts a task, where a loop runs
            return text

        assert await asyncio.to_thread(by_oracle) == answer.text


async def test_a_gemini_stream_that_is_cut_inside_its_last_event_is_broken() -> None:
    body = gemini_event("Hel") + b"\n\n" + gemini_event("lo", finishReason="STOP")[:-9]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    async def talk(line: RawConnection) -> None:
        await line.request()
        await line.send(head, body)

    async with (
        raw_server(talk) as server,
        models.Client(keys={"gemini": "k"}, base_urls={"gemini": server.url}, environ={}) as client,
    ):
        with pytest.raises(errors.StreamBroken):
            await models.stream(MODEL, "hi", client=client, retries=0).collect()


async def test_the_default_client_is_used_if_no_client_is_given() -> None:
    async with scripted([say("mine")]) as (_, client):
        models.set_default_client(client)
        try:
            assert (await models.generate(MODEL, "hi")).text == "mine"
        finally:
            models.set_default_client(None)
    with pytest.raises(errors.MissingKey):
        await models.generate(MODEL, "hi")


def test_the_catalogue_is_public() -> None:
    entry = models.catalogue.lookup("gemini:gemini-2.5-flash")
    assert entry is not None
    assert entry in list(models.catalogue.all_entries())
