"""Holds back the tool calls in the responses of a model until it is decided whether they are made.

Theory of operation
-------------------
A ``ToolGate`` belongs to one request of an agent. It gets the body of the response as it comes, and
returns the bytes that the agent may see:

1. ``start`` with the media type of a response, then ``receive`` with its body, cut anywhere. Text
   is passed on with each event. From the first event of a tool call on, everything is held.
   Reasoning that the vendor signs is held until it is known what follows it, because it may only
   be sent back together with that.
2. ``end`` at the end of the response returns its tool calls, all of them complete. They are
   decided together: the agent must not see one of several calls if another is refused.
3. ``release`` returns the held bytes. If all calls are allowed, the agent gets exactly the bytes
   of the vendor.
4. If a call is refused, ``refuse`` drops the held bytes and returns the body of the next request:
   the same conversation with the response and the refusals. Its response goes through 1 to 4
   again, and its events continue those that the agent has seen. ``close`` ends the response with a
   text instead.

A response that cannot be read raises ``Unreadable``; nothing of what was held is passed on then.
What is special about a vendor is in its ``CallFormat``. There is no I/O here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Literal, Protocol, TypeAlias

import msgspec

from corral.models.metering import EVENT_STREAM, LARGEST_BODY
from corral.models.spec import Wire
from corral.protocol.sse import SseDecoder
from corral.values import Json, JsonObject, as_object, decode_or_none, is_list, is_object

DONE = "[DONE]"
"""The data of the last event of some vendors, which is not JSON."""
JSON = "application/json"
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
"""A blank line after a line. CRLF is one line end, not two."""
_DATA = re.compile(rb"(?:^|[\r\n])data: ?\S")

Step: TypeAlias = Literal["pass", "wait", "hold", "neutral"]
"""What to do with an event: pass it on with all that waits; let it wait for the next event that
passes; hold it, and all after it, to the end of the response; or the same as with the last one."""


class Unreadable(Exception):
    """The tool calls of a response cannot be read."""


class WireCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in the response of a model."""

    call_id: str
    name: str
    arguments: JsonObject | None
    """None if they are not a JSON object."""


class CallFormat(Protocol):
    """How one wire format has tool calls. Holds the state of the responses to one request."""

    calls: list[WireCall]
    """The calls of this response so far."""
    open_calls: int
    """How many calls were started and are not complete."""

    def provider_tools(self, request: JsonObject, /) -> list[str]:
        """The tools of a request that the vendor itself runs."""
        ...

    def begin(self, request: JsonObject, /) -> None:
        """The response to this request begins."""
        ...

    def read(self, event: JsonObject, /) -> Step:
        """Reads an event of a streamed response."""
        ...

    def read_body(self, body: JsonObject, /) -> None:
        """Reads a response, or a part of one, that is not streamed."""
        ...

    def continued(self, event: JsonObject, /) -> JsonObject | None:
        """An event of a response after a refusal, as a part of the response before: the same
        object if it need not be changed, None if it is left out."""
        ...

    def next_request(self, request: JsonObject, results: Sequence[str], /) -> JsonObject | None:
        """The request with this response and the results of its calls. None if the vendor might
        not accept that, or what the agent has seen cannot be continued."""
        ...

    def closing_events(self, text: str, /) -> list[Json]:
        """Events that end the response with a text."""
        ...

    def closing_body(self, text: str, /) -> Json:
        """The same for a response that is not streamed."""
        ...


def call_format(wire: Wire) -> CallFormat | None:
    """None for a wire format whose tool calls are not known."""
    if not wire.call_format:
        return None
    module, _, name = wire.call_format.partition(":")
    made: Callable[[], CallFormat] = getattr(import_module(module), name)
    return made()


class ToolGate:
    def __init__(self, calls: CallFormat, request: JsonObject, wire: Wire) -> None:
        self._format = calls
        self._request = request
        self._is_dropped = wire.is_usage_event
        self._drops_usage = False
        self._is_first = True
        self._begin()

    def _begin(self) -> None:
        self._format.begin(self._request)
        self._buffer = b""
        self._searched = 0
        self._held: list[bytes] = []
        self._held_size = 0
        self._is_holding = False
        self._is_stream = False

    @property
    def provider_tools(self) -> list[str]:
        """The tools of the request that the vendor itself runs."""
        return self._format.provider_tools(self._request)

    def start(self, media_type: str, *, drops_usage: bool = False) -> None:
        """A response begins. ``drops_usage``: the agent did not ask for the event with the usage.
        Raises ``Unreadable`` for a media type in which calls could not be seen."""
        if media_type not in (EVENT_STREAM, JSON):
            raise Unreadable(f"the response is of the type {media_type or 'unknown'}")
        self._is_stream = media_type == EVENT_STREAM
        self._drops_usage = drops_usage

    def receive(self, data: bytes) -> bytes:
        """A piece of the body, decoded. Returns the bytes for the agent. Raises ``Unreadable``."""
        self._buffer += data
        if not self._is_stream:
            self._check_size(len(self._buffer))
            return b""
        return b"".join(map(self._receive_event, self._take_events()))

    def end(self) -> tuple[WireCall, ...]:
        """The response is complete: its tool calls. Raises ``Unreadable``."""
        if self._is_stream:
            rest, self._buffer = self._buffer, b""
            self._hold(self._receive_event(rest, is_last=True))
        else:
            self._read_body()
        if self._format.open_calls:
            raise Unreadable("a tool call of the response is not complete")
        return tuple(self._format.calls)

    def release(self) -> bytes:
        """The held bytes."""
        held, self._held = b"".join(self._held), []
        return held

    def refuse(self, results: Sequence[str]) -> bytes | None:
        """The calls are not made: the body of the next request, with a result for each call. None
        if the conversation cannot be continued safely."""
        request = self._format.next_request(self._request, results)
        if request is None:
            return None
        self._request = request
        self._is_first = False
        self._begin()
        return msgspec.json.encode(request)

    def close(self, text: str) -> bytes:
        """The bytes that end the response with a text, instead of what is held."""
        if not self._is_stream:
            return msgspec.json.encode(self._format.closing_body(text))
        return b"".join(map(encode_event, self._format.closing_events(text)))

    def _take_events(self) -> Iterator[bytes]:
        """The complete events in the buffer, each with its blank line."""
        while found := _BLANK.search(self._buffer, max(0, self._searched - 3)):
            event, self._buffer = self._buffer[: found.end()], self._buffer[found.end() :]
            self._searched = 0
            yield event
        self._searched = len(self._buffer)
        self._check_size(self._searched)

    def _receive_event(self, raw: bytes, *, is_last: bool = False) -> bytes:
        """The bytes for the agent now."""
        decoder = SseDecoder()
        data = b"".join([*decoder.receive(raw), *(decoder.take_rest() if is_last else ())])
        step: Step = "neutral"
        if not data and _DATA.search(raw):
            raise Unreadable("an event of the response is not complete")
        if data and data != DONE.encode():
            if self._drops_usage and self._is_dropped(data):
                return b""
            event = decode_or_none(data)
            if not is_object(event):
                raise Unreadable("an event of the response is not a JSON object")
            step = self._format.read(event)
            raw = raw if self._is_first else self._continued(raw, event)
        if step == "hold":
            self._is_holding = True
        if self._is_holding or step == "wait" or (step == "neutral" and self._held):
            self._hold(raw)
            return b""
        return self.release() + raw

    def _continued(self, raw: bytes, event: JsonObject) -> bytes:
        made = self._format.continued(event)
        return raw if made is event else b"" if made is None else encode_event(made)

    def _hold(self, raw: bytes) -> None:
        if raw:
            self._held.append(raw)
            self._held_size += len(raw)
            self._check_size(self._held_size)

    def _read_body(self) -> None:
        body, self._buffer = self._buffer, b""
        value = decode_or_none(body)
        # A stream that was not asked for as events is a list of chunks.
        chunks = value if is_list(value) else [value]
        for chunk in chunks:
            if not is_object(chunk):
                raise Unreadable("the response is not JSON")
            self._format.read_body(chunk)
        self._hold(body)

    def _check_size(self, size: int) -> None:
        if size > LARGEST_BODY:
            raise Unreadable(f"the response has more than {LARGEST_BODY:,} bytes")


def encode_event(event: Json) -> bytes:
    """A server-sent event. Vendors that name their events repeat the name as ``type``."""
    if isinstance(event, str):
        return b"data: %b\n\n" % event.encode()
    name = as_object(event).get("type")
    head = f"event: {name}\n".encode() if isinstance(name, str) else b""
    return b"%bdata: %b\n\n" % (head, msgspec.json.encode(event))


def parsed_arguments(text: Json) -> JsonObject | None:
    """The arguments of a call, as JSON in a string. No text at all means no arguments."""
    if not isinstance(text, str):
        return None
    value = decode_or_none(text.encode()) if text.strip() else {}
    return value if is_object(value) else None
