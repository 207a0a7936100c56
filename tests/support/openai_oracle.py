"""The OpenAI SDK as the reference: it and corral decode the same bytes."""

# The SDK is generic over what it parses, which the checkers cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import httpx2

from corral._models.spec import Provider
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.sse import SseDecoder
from corral.errors import StreamBroken
from corral.messages import Message, ToolCall
from corral.model_types import Response, StreamEvent

if TYPE_CHECKING:
    import openai


def sdk(answer: Callable[[httpx2.Request], httpx2.Response]) -> openai.OpenAI:
    import openai

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(
        api_key="k", base_url="https://api.test/v1", http_client=transport, max_retries=0
    )


def sent_by_sdk(method: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path and the body that the SDK puts on the wire."""
    seen: list[tuple[str, bytes]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.url.path, request.read()))
        return httpx2.Response(200, json={})

    with sdk(answer) as client:
        create: Any = client.responses.create
        if method == "chat":
            create = client.chat.completions.create
        create(**arguments)
    path, body = seen[0]
    return path.removeprefix("/v1"), cast("dict[str, Any]", json.loads(body))


def sdk_replaying(stream: bytes) -> openai.OpenAI:
    """The SDK, answered with a recorded stream."""
    headers = {"content-type": "text/event-stream"}
    return sdk(lambda _: httpx2.Response(200, content=stream, headers=headers))


class ParsedStream:
    """What our wire makes of a stream."""

    def __init__(self, provider: Provider, chunks: Iterable[bytes], used: Iterable[str] = ()):
        history = [Message.assistant(ToolCall(id, "tool")) for id in used]
        self.parts = ResponseBuilder(provider.name, "asked-for", history)
        self.events: list[StreamEvent] = []
        sse, translate = SseDecoder(), provider.wire.translator(provider)
        for chunk in chunks:
            translate(sse.receive(chunk), self.parts)
            self.events += self.parts.take_events()

    @property
    def response(self) -> Response:
        response = self.parts.response()
        self.events += self.parts.take_events()
        return response


def parse_stream(provider: Provider, stream: bytes) -> Response:
    return ParsedStream(provider, [stream]).response


def read(provider: Provider, body: bytes) -> Response:
    parts = ResponseBuilder(provider.name, "asked-for")
    provider.wire.read(body, parts, provider)
    return parts.response()


def messages_of(*messages: Message | str) -> tuple[Message, ...]:
    return tuple(m if isinstance(m, Message) else Message.user(m) for m in messages)


def outcomes_of_cuts(provider: Provider, stream: bytes) -> Iterator[Response | None]:
    """What becomes of the stream when it ends after any of its bytes: None where it is broken.
    Whatever else is raised, passes. A byte that completes no event changes nothing."""
    sse, datas = SseDecoder(), list[bytes]()
    for end in range(len(stream) + 1):
        more = sse.receive(stream[end - 1 : end]) if end else []
        if more or not end:
            datas += more
            parts = ResponseBuilder(provider.name, "asked-for")
            try:
                provider.wire.translator(provider)(datas, parts)
                outcome = parts.response()
            except StreamBroken:
                outcome = None
            yield outcome
