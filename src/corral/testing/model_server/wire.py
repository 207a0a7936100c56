"""What a wire is, and what all of them do alike.

A wire turns bytes into a ``Request`` and a ``Turn`` into bytes, and does no
I/O. It is a module with the functions of ``Wire``:

- ``receive``: an incoming call → a ``Request``, or an ``Answer`` that needs no
  turn, or ``None`` for a path that is another wire's;
- ``credential``: the key that came with it;
- ``unscripted``: the turn for a call beside the conversation;
- ``reply``: a turn → what to send; ``refuse``: an error, in the vendor's form;
- ``env``: the variables that send the vendor's own clients here.

A piece of a streamed answer ends with something that the script says: ``cut``
and ``hang`` count in these, so that a script breaks off at the same word on
every wire, however many events the vendor wraps around it. What ends the
answer is a piece of its own: what is cut off never looks finished.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from corral.testing.model_server.http import Incoming, ServerResponse
from corral.testing.model_server.request import Call, Request
from corral.testing.model_server.script import Turn, pieces
from corral.values import Json

Headers = tuple[tuple[str, str], ...]
JSON: Headers = (("Content-Type", "application/json"),)
EVENTS: Headers = (("Content-Type", "text/event-stream; charset=utf-8"),)
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body></body></html>\n"
SIGNATURE = "scripted-signature"


class Wire(Protocol):
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
    """The JSON object that was sent. Raises ``ValueError`` with what is wrong with it."""
    try:
        sent: Json = msgspec.json.decode(incoming.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(sent, dict):
        raise ValueError("The root is not an object.")
    return sent


def paced(answer: ServerResponse, turn: Turn) -> ServerResponse:
    """The answer, sent as slowly and as far as the turn says."""
    return msgspec.structs.replace(
        answer,
        delay=turn.delay,
        gap=turn.chunk_delay,
        stall=1 if turn.hang == "after" else 0 if turn.hang else None,
        cut=turn.cut,
        cut_bytes=turn.cut_bytes,
    )


def undivided(whole: bytes, headers: Headers = JSON) -> ServerResponse:
    """An answer that is no stream; in two pieces, so that there is a middle to stop in."""
    half = len(whole) // 2
    return ServerResponse(headers=headers, pieces=[whole[:half], whole[half:]])


def malformed(
    turn: Turn, half: bytes, headers: Headers, good: Sequence[bytes] = ()
) -> ServerResponse:
    """What the turn has in place of sense, after what is still good. ``half``: a broken event."""
    raw = turn.malformed
    if raw == "html":
        return ServerResponse(headers=(("Content-Type", "text/html"),), pieces=[HTML])
    bad = half if raw == "json" else raw.encode() if isinstance(raw, str) else raw or b""
    return ServerResponse(headers=headers, streamed=True, pieces=[*good, bad])


def retry_after(turn: Turn) -> Headers:
    if turn.retry_after is None:
        return ()
    return (("Retry-After", str(math.ceil(turn.retry_after))),)


def counts(request: Request, turn: Turn) -> dict[str, int]:
    """The script's usage, or else a guess of four characters a token."""
    if isinstance(turn.usage, Mapping):
        return dict(turn.usage)
    read = len(request.system) + sum(map(len, request.texts))
    said = sum(map(len, pieces(turn.text))) + sum(len(str(call.args)) for call in turn.calls)
    thought = sum(map(len, pieces(turn.thoughts)))
    guessed = {"input": -(-read // 4), "output": -(-said // 4)}
    return guessed | {"thoughts": -(-thought // 4)} if thought else guessed


def signature(turn: Turn) -> str | None:
    plain = turn.signature or (SIGNATURE if pieces(turn.thoughts) else None)
    return base64.b64encode(plain.encode()).decode() if plain else None


def unsigned(signature: str) -> str:
    """A signature that came back, as the script has it."""
    try:
        return base64.b64decode(signature, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return signature  # not one of ours


def call_id(request: Request, index: int, call: Call, prefix: str) -> str:
    """For wires where no call is without an id: one that the script leaves out is made up, unlike
    any of this conversation."""
    return call.id or f"{prefix}_{len(request.tool_calls) + index}"


def mark(request: Request) -> str:
    """For ids: clients tell answers apart by them, so no two requests share one; and it is the
    same in every run, so that recordings can be compared."""
    return blake2b(msgspec.json.encode(request.body), digest_size=12).hexdigest()


def sse(events: Iterable[dict[str, Json]]) -> bytes:
    """Events that are named for their type."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event))
        for event in events
    )
