"""The interface of a wire, and what all wires share.

A wire converts bytes into a ``Request`` and a ``Turn`` into bytes, and does no I/O. It is a module
with the functions of ``ScriptedWire``:

- ``receive``: an incoming call → a ``Request``, or a ``ServerResponse`` that needs no turn, or
  ``None`` for a path of another wire;
- ``credential``: the API key of the call;
- ``unscripted``: the turn for a call outside the conversation;
- ``reply``: a turn → the response; ``refuse``: an error in the vendor's form;
- ``env``: the variables that direct the vendor's clients to this server.

Each piece of a streamed response ends with a text or call of the script. ``cut`` and ``hang`` count
these pieces, so a script stops at the same place on every wire, however many events the vendor
sends around it. The end of the response is a separate piece, so a response that was cut never
looks complete.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from corral._testing.model_server.http import Incoming, ServerResponse
from corral._testing.model_server.request import Call, Request
from corral._testing.model_server.script import Turn, pieces
from corral.values import Json

Headers = tuple[tuple[str, str], ...]
JSON: Headers = (("Content-Type", "application/json"),)
EVENTS: Headers = (("Content-Type", "text/event-stream; charset=utf-8"),)
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body></body></html>\n"
SIGNATURE = "scripted-signature"


class ScriptedWire(Protocol):
    def receive(self, incoming: Incoming, lane: str) -> Request | ServerResponse | None: ...
    def credential(self, incoming: Incoming) -> str | None: ...
    def unscripted(self, request: Request) -> Turn: ...
    def reply(self, request: Request, turn: Turn) -> ServerResponse: ...
    def refuse(self, status: int, message: str) -> ServerResponse: ...
    def refuse_key(self, key: str | None) -> ServerResponse: ...
    def env(self, url: str, key: str) -> dict[str, str]: ...


def bearer(incoming: Incoming) -> str | None:
    scheme, _, token = incoming.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def body(incoming: Incoming) -> dict[str, Json]:
    """The JSON object of the body. Raises ``ValueError`` with the reason if it is invalid."""
    try:
        sent: Json = msgspec.json.decode(incoming.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(sent, dict):
        raise ValueError("The root is not an object.")
    return sent


def build_response(
    turn: Turn,
    failure: ServerResponse,
    stream: Callable[[], Sequence[bytes]] | None,
    complete: Callable[[], Json],
    half: bytes,
    headers: Headers,
) -> ServerResponse:
    """The response to a turn: its failure, its malformed data, its stream if the client wants one,
    or the complete body. ``half`` is an incomplete event of the stream."""
    content_type = JSON if stream is None else EVENTS
    if turn.status is not None and not (turn.late and stream is not None):
        answer = failure
    elif turn.malformed is not None:
        good = stream()[:-1] if turn.text and stream is not None else ()
        answer = malformed(
            turn, half.partition(b"data: ")[2] if stream is None else half, content_type, good
        )
    elif stream is not None:
        answer = ServerResponse(headers=content_type + headers, streamed=True, pieces=stream())
    else:
        answer = plain_response(msgspec.json.encode(complete()), content_type + headers)
    return with_faults(answer, turn)


def with_faults(answer: ServerResponse, turn: Turn) -> ServerResponse:
    """The response with the delays and faults of the turn."""
    return msgspec.structs.replace(
        answer,
        delay=turn.delay,
        gap=turn.chunk_delay,
        stall=1 if turn.hang == "after" else 0 if turn.hang else None,
        cut=turn.cut,
        cut_bytes=turn.cut_bytes,
    )


def plain_response(body: bytes, headers: Headers = JSON) -> ServerResponse:
    """A response that is not streamed. It has two pieces, so that it can be cut in the middle."""
    half = len(body) // 2
    return ServerResponse(headers=headers, pieces=[body[:half], body[half:]])


def malformed(
    turn: Turn, half: bytes, headers: Headers, good: Sequence[bytes] = ()
) -> ServerResponse:
    """The malformed data of the turn, after its valid pieces. ``half`` is an incomplete event."""
    raw = turn.malformed
    if raw == "html":
        return ServerResponse(headers=(("Content-Type", "text/html"),), pieces=[HTML])
    bad = half if raw == "json" else raw.encode() if isinstance(raw, str) else raw or b""
    return ServerResponse(headers=headers, streamed=True, pieces=[*good, bad])


def retry_after(turn: Turn) -> Headers:
    if turn.retry_after is None:
        return ()
    return (("Retry-After", str(math.ceil(turn.retry_after))),)


def token_counts(request: Request, turn: Turn) -> dict[str, int]:
    """The usage of the script; else an estimate of four characters per token."""
    if isinstance(turn.usage, Mapping):
        return dict(turn.usage)
    read = len(request.system) + sum(map(len, request.texts))
    written = sum(map(len, pieces(turn.text))) + sum(len(str(call.args)) for call in turn.calls)
    thoughts = sum(map(len, pieces(turn.thoughts)))
    guessed = {"input": -(-read // 4), "output": -(-written // 4)}
    return guessed | {"thoughts": -(-thoughts // 4)} if thoughts else guessed


def signature(turn: Turn) -> str | None:
    plain = turn.signature or (SIGNATURE if pieces(turn.thoughts) else None)
    return base64.b64encode(plain.encode()).decode() if plain else None


def decode_signature(signature: str) -> str:
    """A signature that the client sent back, as it is in the script."""
    try:
        return base64.b64decode(signature, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return signature  # not a signature of this server


def call_id(request: Request, index: int, call: Call, prefix: str) -> str:
    """The id of a call, for wires that require one. If the script has none, it is generated and is
    unique in this conversation."""
    return call.id or f"{prefix}_{len(request.tool_calls) + index}"


def request_mark(request: Request) -> str:
    """A part of ids. It differs for each request, because clients distinguish responses by it. It
    is the same in every run, so that recordings can be compared."""
    return blake2b(msgspec.json.encode(request.body), digest_size=12).hexdigest()


def sse(events: Iterable[dict[str, Json]]) -> bytes:
    """Server-sent events whose name is their type."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event))
        for event in events
    )
