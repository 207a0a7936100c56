"""Model calls in the format of each vendor, and the bytes that vendors answer with."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from support.raw_answers import post

from corral.testing import Call, ModelServer, Turn
from corral.values import Usage

USAGE = {"input": 120, "cached": 20, "output": 7, "thoughts": 3}
EXPECTED = Usage(input=120, output=10, reasoning=3, cache_read=20)
TURNS = (
    Turn(text=("hel", "lo wörld"), thoughts=("hm", "m"), usage=USAGE),
    Turn(text="I look.", calls=(Call("read_file", {"path": "a"}), Call("ls", {})), usage=USAGE),
)


class WireFormat(NamedTuple):
    vendor: str
    path: str
    body: dict[str, Any]
    """Of a streamed request."""
    key_header: str = "Authorization: Bearer "
    """What stands before the key."""

    @property
    def endpoint(self) -> str:
        """The path without the query."""
        return self.path.partition("?")[0]


_ASKED = [{"role": "user", "content": "hi"}]
FORMATS = {
    each.vendor: each
    for each in (
        WireFormat(
            "gemini",
            "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
            {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
            "x-goog-api-key: ",
        ),
        WireFormat(
            "anthropic",
            "/v1/messages",
            {
                "model": "claude-sonnet-4-5",
                "max_tokens": 100,
                "stream": True,
                "messages": _ASKED,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            },
            "x-api-key: ",
        ),
        WireFormat("openai", "/v1/responses", {"model": "gpt-5", "stream": True, "input": "hi"}),
        WireFormat(
            "openai-chat",
            "/v1/chat/completions",
            {
                "model": "gpt-5",
                "stream": True,
                "stream_options": {"include_usage": True},
                "messages": _ASKED,
            },
        ),
    )
}


@cache
def recorded_streams(vendor: str) -> tuple[bytes, ...]:
    """The bodies of streamed responses."""
    made = FORMATS[vendor]
    with ModelServer([*TURNS]) as server:
        streams = tuple(post(server, made.path, made.body).encode() for _ in TURNS)
    assert all(b"data: " in stream for stream in streams), streams
    return streams


def request_bytes(made: WireFormat, port: int, *headers: str, **more: object) -> bytes:
    """The request as an agent sends it, with further fields of the body."""
    body = json.dumps({**made.body, **more}).encode()
    lines = [
        f"POST {made.path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
