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
3. ``release`` returns what was held, if all calls are allowed.
4. If a call is refused, ``refuse`` drops what was held and returns the body of the next request:
   the same conversation with the response and the refusals. Its response goes through 1 to 4
   again, and its events continue those that the agent has seen. ``close`` ends the response with a
   text instead.

The rule for everything that the agent gets
-------------------------------------------
Agents read responses with parsers of their own, and each accepts something that others do not: a
blank before ``data:``, a repeated key, ``choices`` that are not a list, a second candidate. A call
that only the agent's parser finds would be made without a decision. So

- nothing is copied. The agent gets events that are encoded again from the JSON that was read: one
  line each, no repeated keys, no unusual escapes. The events of a tool call are made from the call
  that was judged, with its arguments in one piece.
- what is not understood exactly raises ``Unjudgeable``, and the run ends. This is so for the
  framing (``protocol/strict_sse``), for the structure (a field that may hold a call must have its
  documented name and type), and for the order of events. A part, block, delta or item of a kind
  that is not known is refused too, and the error names the kind: it might be a new form of call. So
  is a tool of the vendor that the request did not ask for.
- what cannot hold a call passes as it is read: scalars, and metadata in which nothing is called
  like a tool call. Otherwise each new field of a vendor would end runs.
- an *event* of a type that is not known is left out. Vendors add such types, and tell clients to
  ignore those that they do not know; so an agent that never gets one works, and cannot read a call
  from it. It is not refused, because that would end runs for a new kind of progress message.

What is special about a vendor is in its ``CallFormat``. Everywhere else a field of another type is
treated as missing (``corral.values``). Here that would be a gap: a program might read it as a tool
call. So call formats read fields with ``required_object``, ``optional_text`` and the like, which
accept no other type. There is no I/O here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from corral._models.spec import EVENT_STREAM, LARGEST_BODY, Wire
from corral._protocol.sse import KEEP_ALIVE, SentEvent, StrictEvents, UnknownForm
from corral.values import Json, JsonObject, as_object, decode_or_none, is_list, is_object

_CALL_WORDS = frozenset(
    (
        "functioncall",
        "functioncalls",
        "toolcall",
        "toolcalls",
        "tooluse",
        "tooluses",
        "customtoolcall",
        "localshellcall",
        "shellcall",
        "applypatchcall",
        "partialargs",
    )
)
"""Names of fields and types that hold a tool call, in lower case and without separators."""
_PROTOTYPE = "__proto__"
"""Programs in JavaScript that copy an object take the fields of this one for its own."""


class Unjudgeable(Exception):
    """A response has a form in which its tool calls cannot be judged."""


class Incomplete(Unjudgeable):
    """A response ended before a tool call or an event was complete."""


def required_object(value: Json, what: str) -> JsonObject:
    """Raises ``Unjudgeable`` for anything else."""
    if not is_object(value):
        raise Unjudgeable(f"{what} is not an object")
    return value


def optional_object(holder: JsonObject, name: str) -> JsonObject:
    """A field that is an object; empty if there is none. Raises ``Unjudgeable`` for anything
    else."""
    value = holder.get(name)
    return {} if value is None else required_object(value, name)


def optional_objects(holder: JsonObject, name: str) -> list[JsonObject]:
    """A field that is a list of objects; empty if there is none. Raises ``Unjudgeable`` for
    anything else."""
    value = holder.get(name)
    if value is None:
        return []
    if not is_list(value):
        raise Unjudgeable(f"{name} is not a list")
    return [required_object(item, f"an item of {name}") for item in value]


def optional_text(holder: JsonObject, name: str) -> str:
    """A field that is a string; empty if there is none. Raises ``Unjudgeable`` for anything
    else."""
    value = holder.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unjudgeable(f"{name} is not a string")
    return value


def optional_index(holder: JsonObject, name: str) -> int | None:
    """A field that is a number from 0 on; None if there is none. Raises ``Unjudgeable`` for
    anything else."""
    value = holder.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Unjudgeable(f"{name} is not a number from 0 on")
    return value


def check_other_fields(holder: JsonObject, known: Collection[str], what: str) -> None:
    """Raises ``Unjudgeable`` if a field that is not in ``known`` may hold a tool call."""
    for name, value in holder.items():
        holds_call = (
            _is_call_word(inner_name)
            or (inner_name == "type" and isinstance(inner, str) and _is_call_word(inner))
            for inner_name, inner in _fields(value)
        )
        if name not in known and (_is_call_word(name) or any(holds_call)):
            raise Unjudgeable(f"{what} has an unknown field that may hold a tool call: {name!r}")


def check_prototypes(value: Json) -> None:
    """Raises ``Unjudgeable`` for an object that changes how JavaScript reads other objects."""
    if any(name == _PROTOTYPE for name, _ in _fields(value)):
        raise Unjudgeable(f"an object has a field with the name {_PROTOTYPE}")


def _is_call_word(name: str) -> bool:
    return name.replace("_", "").replace("-", "").lower() in _CALL_WORDS


def _fields(value: Json) -> Iterator[tuple[str, Json]]:
    """All fields of all objects in a value."""
    left: list[Json] = [value]
    while left:
        value = left.pop()
        if is_object(value):
            yield from value.items()
            left.extend(value.values())
        elif is_list(value):
            left.extend(value)


DONE = "[DONE]"
"""The data of the last event of some vendors, which is not JSON."""
JSON = "application/json"
NOT_JSON = "its arguments are not a JSON object"
NOT_PLAIN = "its name has unusual characters"
ONE_ID = "two calls of the message have one id"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")
"""What all agents read as the same name. Some remove blanks around it."""
_LINE_SEPARATORS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))
"""Line ends for some parsers, although not for JSON and for server-sent events: ``.`` in a regular
expression of JavaScript does not match them. So they are sent as escapes."""

Step: TypeAlias = Literal["pass", "wait", "hold", "neutral"]
"""What to do with an event: pass it on with all that waits; let it wait for the next event that
passes; hold it, and all after it, to the end of the response; or the same as with the last one."""
Reading: TypeAlias = tuple[Step, Sequence[JsonObject]]
"""What to do, and the events that the agent gets for the one that was read."""


class WireCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in the response of a model."""

    call_id: str
    name: str
    arguments: JsonObject
    problem: str = ""
    """Why it cannot be made, whatever the policy says: agents may read it differently."""


def wire_call(call_id: str, name: str, arguments: JsonObject | None) -> WireCall:
    """``arguments``: None if they are not a JSON object."""
    problem = NOT_JSON if arguments is None else ""
    if not _PLAIN_NAME.fullmatch(name):
        problem = NOT_PLAIN
    return WireCall(call_id=call_id, name=name, arguments=arguments or {}, problem=problem)


class CallFormat(ABC):
    """How one wire format has tool calls. Holds the state of the responses to one request. All
    that read raise ``Unjudgeable`` for what they do not know exactly."""

    names_events = False
    """Whether events have a name, which is their ``type``."""
    sends_done = False
    """Whether a stream may end with ``[DONE]``."""
    may_be_list = False
    """Whether a response that is not a stream may be a list of its chunks."""
    calls: list[WireCall]
    """The calls of this response so far."""

    @property
    def has_open_call(self) -> bool:
        """Whether a call was started and is not complete."""
        return False

    @abstractmethod
    def provider_tools(self, request: JsonObject) -> list[str]:
        """The tools of a request that the vendor itself runs."""

    @abstractmethod
    def begin(self, request: JsonObject) -> None:
        """The response to this request begins. If it is not the first one, it continues what the
        agent has seen of those before."""

    @abstractmethod
    def read(self, event: JsonObject) -> Reading:
        """Reads an event of a streamed response."""

    @abstractmethod
    def read_body(self, body: JsonObject) -> JsonObject:
        """Reads a response, or a part of one, that is not streamed. Returns it for the agent."""

    @abstractmethod
    def next_request(self, request: JsonObject, results: Sequence[str]) -> JsonObject | None:
        """The request with this response and the results of its calls. None if the vendor might
        not accept that, or what the agent has seen cannot be continued."""

    @abstractmethod
    def closing_events(self, text: str) -> list[Json]:
        """Events that end the response with a text."""

    @abstractmethod
    def closing_body(self, text: str) -> Json:
        """The same for a response that is not streamed."""


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
        self._begin()

    def _begin(self) -> None:
        self._format.begin(self._request)
        self._events = StrictEvents()
        self._body = bytearray()
        self._held: list[bytes] = []
        self._held_size = 0
        self._is_holding = False
        self._is_done = False
        self._is_stream = False

    @property
    def provider_tools(self) -> list[str]:
        """The tools of the request that the vendor itself runs."""
        return self._format.provider_tools(self._request)

    def start(self, media_type: str, *, drops_usage: bool = False) -> None:
        """A response begins. ``drops_usage``: the agent did not ask for the event with the usage.
        Raises ``Unjudgeable`` for a media type in which calls could not be seen."""
        if media_type not in (EVENT_STREAM, JSON):
            raise Unjudgeable(f"the response is of the type {media_type or 'unknown'}")
        self._is_stream = media_type == EVENT_STREAM
        self._drops_usage = drops_usage

    @property
    def media_type(self) -> str:
        """Of what the agent gets."""
        return EVENT_STREAM if self._is_stream else JSON

    def receive(self, data: bytes) -> bytes:
        """A piece of the body, decoded. Returns the bytes for the agent. Raises ``Unjudgeable``."""
        if not self._is_stream:
            self._body += data
            _check_size(len(self._body))
            return b""
        try:
            events = self._events.receive(data)
        except UnknownForm as unknown:
            raise Unjudgeable(str(unknown)) from unknown
        return b"".join(map(self._receive_event, events))

    def end(self) -> tuple[WireCall, ...]:
        """The response is complete: its tool calls. Raises ``Unjudgeable``."""
        if self._is_stream:
            try:
                for event in self._events.end():
                    self._hold(self._receive_event(event))
            except (UnknownForm, Unjudgeable) as cut:
                raise Incomplete(f"the last event of the response is not complete: {cut}") from cut
        else:
            value = decode_or_none(bytes(self._body))
            check_prototypes(value)
            chunks = value if is_list(value) and self._format.may_be_list else [value]
            made: list[Json] = []
            for chunk in chunks:
                if not is_object(chunk):
                    raise Unjudgeable("the response is not a JSON object")
                made.append(self._format.read_body(chunk))
            self._hold(_encode(made if chunks is value else made[0]))
        if self._format.has_open_call:
            raise Incomplete("a tool call of the response is not complete")
        ids = [call.call_id for call in self._format.calls if call.call_id]
        if len(set(ids)) < len(ids):
            return tuple(replace(call, problem=ONE_ID) for call in self._format.calls)
        return tuple(self._format.calls)

    def release(self) -> bytes:
        """What was held."""
        held, self._held = b"".join(self._held), []
        return held

    def refuse(self, results: Sequence[str]) -> bytes | None:
        """The calls are not made: the body of the next request, with a result for each call. None
        if the conversation cannot be continued safely."""
        request = self._format.next_request(self._request, results)
        if request is None:
            return None
        self._request = request
        self._begin()
        return msgspec.json.encode(request)

    def close(self, text: str) -> bytes:
        """The bytes that end the response with a text, instead of what is held."""
        if not self._is_stream:
            return _encode(self._format.closing_body(text))
        return b"".join(map(self._encode_event, self._format.closing_events(text)))

    def _receive_event(self, event: SentEvent) -> bytes:
        """The bytes for the agent now."""
        if event == KEEP_ALIVE:
            return b"\n"
        if self._is_done:
            raise Unjudgeable(f"the response goes on after {DONE}")
        if event.data == DONE.encode() and self._format.sends_done:
            self._is_done = True
            return self._take("neutral", [DONE])
        value = decode_or_none(event.data)
        if not is_object(value):
            raise Unjudgeable("an event of the response is not a JSON object")
        if event.name and self._format.names_events:
            value.setdefault("type", event.name)  # errors of some servers have only the name
            if value["type"] != event.name:
                raise Unjudgeable(f"an event has the name {event.name} and another type")
        check_prototypes(value)
        if self._drops_usage and self._is_dropped(event.data):
            return b""
        return self._take(*self._format.read(value))

    def _take(self, step: Step, events: Sequence[Json]) -> bytes:
        data = b"".join(map(self._encode_event, events))
        if step == "hold":
            self._is_holding = True
        if self._is_holding or step == "wait" or (step == "neutral" and self._held):
            self._hold(data)
            return b""
        return self.release() + data

    def _encode_event(self, event: Json) -> bytes:
        if isinstance(event, str):
            return b"data: %b\n\n" % event.encode()
        name = as_object(event).get("type") if self._format.names_events else None
        head = f"event: {name}\n".encode() if isinstance(name, str) else b""
        return b"%bdata: %b\n\n" % (head, _encode(event))

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._held_size += len(data)
            _check_size(self._held_size)


def _check_size(size: int) -> None:
    if size > LARGEST_BODY:
        raise Unjudgeable(f"the response has more than {LARGEST_BODY:,} bytes")


def _encode(value: Json) -> bytes:
    encoded = msgspec.json.encode(value)
    for separator, escape in _LINE_SEPARATORS:
        encoded = encoded.replace(separator, escape)
    return encoded


def encode_arguments(arguments: JsonObject) -> str:
    """The arguments of a call as JSON in a string, from what was judged."""
    return _encode(arguments).decode()


def parsed_arguments(text: str) -> JsonObject | None:
    """The arguments of a call, as JSON in a string. No text at all means no arguments. None if they
    are not an object."""
    value = decode_or_none(text.encode()) if text.strip() else {}
    if is_object(value):
        check_prototypes(value)
        return value
    return None
