"""A deadline covers a complete call; data before a failure reaches the caller."""

from __future__ import annotations

import asyncio

import pytest

from corral import errors, models
from corral.testing import ModelServer, Turn, call, say

MODEL = "gemini:gemini-2.5-flash"


def client(url: str) -> models.Client:
    return models.Client(keys={"gemini": "k"}, base_urls={"gemini": url}, environ={})


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_that_never_returns_is_ended_by_the_timeout(streamed: bool) -> None:
    ended = asyncio.Event()

    async def wait() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    script = [call("wait"), say("never")]
    async with ModelServer(script) as server, client(server.url) as made, asyncio.timeout(20):
        with pytest.raises(errors.TotalTimeout, match="timeout"):
            if streamed:
                stream = models.stream(MODEL, "go", client=made, tools=[wait], timeout=1.5)
                await stream.collect()
            else:
                await models.generate(MODEL, "go", client=made, tools=[wait], timeout=1.5)
        assert len(server.requests) == 1
    assert ended.is_set()


@pytest.mark.parametrize("streamed", [False, True])
async def test_repairs_share_the_timeout_of_the_call(streamed: bool) -> None:
    # Each answer comes in time, all of them do not.
    script = [say("warm"), Turn(text="no", delay=0.7, repeat=3)]
    async with ModelServer(script) as server, client(server.url) as made:
        # Loading the HTTP client must not be what uses the time up.
        await models.generate(MODEL, "hi", client=made)
        with pytest.raises(errors.TotalTimeout):
            if streamed:
                stream = models.stream_object(MODEL, list[int], "go", client=made, timeout=1.2)
                await stream.collect()
            else:
                await models.generate_object(MODEL, list[int], "go", client=made, timeout=1.2)


async def test_text_that_came_together_with_an_error_is_not_lost() -> None:
    seen_one = asyncio.Event()

    def chunk(text: str) -> bytes:
        return (
            f'data: {{"candidates":[{{"content":{{"parts":[{{"text":"{text}"}}]}}}}]}}\n\n'.encode()
        )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        writer.write(head + chunk("one"))
        await writer.drain()
        await seen_one.wait()
        error = b'data: {"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}\n\n'
        writer.write(chunk("two") + error)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    events: list[models.StreamEvent] = []
    async with listening, asyncio.timeout(20):
        port = listening.sockets[0].getsockname()[1]
        async with client(f"http://127.0.0.1:{port}") as made:
            with pytest.raises(errors.InvalidRequest):
                async for event in models.stream(MODEL, "go", client=made):
                    events.append(event)
                    if isinstance(event, models.TextDelta):
                        seen_one.set()
    assert [e.text for e in events if isinstance(e, models.TextDelta)] == ["one", "two"]
    assert isinstance(events[-1], models.Failed)
