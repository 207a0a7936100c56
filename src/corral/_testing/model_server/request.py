"""A request to the model, independent of the vendor, and functions that read its fields. Invalid
values are skipped: a client under test may send anything, and the test decides what is correct."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from corral.values import Json


def items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def tables(value: Json) -> Iterator[dict[str, Json]]:
    return (entry for entry in items(value) if isinstance(entry, dict))


def string(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def texts(content: Json) -> tuple[str, ...]:
    """Text is a string, or parts among others such as images."""
    if isinstance(content, str):
        return (content,) if content else ()
    return tuple(text for part in tables(content) if isinstance(text := part.get("text"), str))


def result(content: Json) -> Json:
    """What a tool returned. Texts of several parts are joined."""
    return "\n".join(texts(content)) if isinstance(content, list) else content


def arguments(written: Json) -> dict[str, Json]:
    """The arguments of a call, from the string that the model wrote."""
    args: Json = None
    with suppress(msgspec.DecodeError, RecursionError):  # the string of a model need not be JSON
        args = msgspec.json.decode(string(written) or "{}")
    return args if isinstance(args, dict) else {}


SECRET = frozenset({"x-goog-api-key", "x-api-key", "api-key", "authorization"})
"""Headers that carry a key, in any vendor's spelling."""


class RequestHeaders(dict[str, str]):
    """Header names in lower case. API keys are stored, but never printed."""

    def __repr__(self) -> str:
        return repr({name: "…" if name in SECRET else value for name, value in self.items()})


class Call(msgspec.Struct, frozen=True):
    """A function that the model calls. If the id is missing, none is sent.

    ::

        turn = Turn(calls=[Call("read_file", {"file_path": "README.md"})])
    """

    name: str
    args: Mapping[str, Json] = {}
    id: str | None = None


class ToolResult(NamedTuple):
    """The result of a tool, as the client sent it.

    ::

        for message in model.requests[1].history:
            print([(result.name, result.failed) for result in message.results])
    """

    name: str
    response: Json
    id: str | None = None
    failed: bool = False
    """Whether it is marked as an error, on wires that have such a mark."""


class Message(msgspec.Struct, frozen=True):
    """One entry of the history.

    ::

        print([(message.role, message.texts) for message in model.requests[0].history])
    """

    role: str
    """``user`` or ``model``."""
    texts: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    results: tuple[ToolResult, ...] = ()
    context: tuple[str, ...] = ()
    """Texts that the client put before the user's prompt, such as its session context."""
    signatures: tuple[str, ...] = ()
    """Thought signatures, decoded, in the order of their parts."""


def joined(role: str, parts: Iterable[Message]) -> Message:
    """One message of messages that have one part each."""
    messages = list(parts)
    names = [name for name in Message.__struct_fields__ if name != "role"]
    fields = {name: sum((getattr(part, name) for part in messages), ()) for name in names}
    return Message(role, **fields)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the model, as it arrived. Its ``repr`` shows no key.

    ::

        print(model.requests[0].last_text, model.requests[0].tools)
    """

    lane: str
    method: str
    """The vendor's name: ``streamGenerateContent``, ``generateContent``, ``countTokens``."""
    model: str
    path: str
    """As requested, with lane and query."""
    headers: RequestHeaders
    body: dict[str, Json]
    system: str = ""
    history: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    """The names of the functions that the model may call."""
    aside: bool = False
    """Whether it is outside the conversation: a token count, or a request of the client itself."""

    @property
    def texts(self) -> list[str]:
        """Every text of the history, from both sides, with the context."""
        return [text for m in self.history for text in (*m.context, *m.texts)]

    @property
    def last_text(self) -> str:
        """The last message of the user that has text. Its parts are joined by newlines.

        Without the client's context, which names files and would match by accident.
        """
        found = [m.texts for m in self.history if m.role == "user" and m.texts]
        return "\n".join(found[-1]) if found else ""

    @property
    def tool_results(self) -> list[tuple[str, Json]]:
        """Every tool result of the history, as name and response. Ids are in ``history``."""
        return [(result.name, result.response) for m in self.history for result in m.results]

    @property
    def tool_calls(self) -> list[Call]:
        """Every call of the model in the history."""
        return [call for message in self.history for call in message.calls]

    def __repr__(self) -> str:
        text = self.last_text
        text = text if len(text) <= 80 else text[:79] + "…"
        return (
            f"<Request {self.method} of {self.model} on lane {self.lane!r}: {text!r}, "
            f"{len(self.history)} messages, {len(self.tools)} tools>"
        )
