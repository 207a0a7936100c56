"""What a chat-completions request says: its history, its system prompt, its tools.

Read leniently: a client under test may send anything, and what it sent is for
the test to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from corral.events import Json
from corral.testing.request import Message, ToolResult
from corral.testing.script import Call

INSTRUCTIONS = ("system", "developer")
"""Roles that say how to behave: no entries of the history."""


def system(messages: list[Json]) -> str:
    said = [_texts(entry.get("content")) for entry in _tables(messages) if _instructs(entry)]
    return "\n".join(text for texts in said for text in texts)


def history(messages: list[Json]) -> Iterator[Message]:
    """A result names only its call, so names are looked up in what came before."""
    called: dict[str, str] = {}
    for entry in _tables(messages):
        match entry.get("role"):
            case _ if _instructs(entry):
                pass
            case "assistant":
                calls = tuple(_call(made) for made in _tables(items(entry.get("tool_calls"))))
                called.update({call.id: call.name for call in calls if call.id is not None})
                thoughts = _texts(entry.get("reasoning_content") or entry.get("reasoning"))
                said = _texts(entry.get("content"))
                yield Message("model", texts=said, thoughts=thoughts, calls=calls)
            case "tool":
                id = _str(entry.get("tool_call_id"))
                content = entry.get("content")
                whole: Json = "\n".join(_texts(content)) if isinstance(content, list) else content
                yield Message("user", results=(ToolResult(called.get(id or "", ""), whole, id),))
            case _:
                yield Message("user", texts=_texts(entry.get("content")))


def tools(declarations: list[Json]) -> Iterator[str]:
    for declared in _tables(declarations):
        match declared:
            case {"function": {"name": str(name)}}:
                yield name
            case _:
                pass


def items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _instructs(entry: dict[str, Json]) -> bool:
    return entry.get("role") in INSTRUCTIONS


def _tables(values: list[Json]) -> Iterator[dict[str, Json]]:
    return (value for value in values if isinstance(value, dict))


def _texts(content: Json) -> tuple[str, ...]:
    """Text comes bare, or as parts beside images."""
    if isinstance(content, str):
        return (content,) if content else ()
    parts = _tables(items(content))
    return tuple(text for part in parts if isinstance(text := part.get("text"), str))


def _call(made: dict[str, Json]) -> Call:
    function = made.get("function")
    named = function if isinstance(function, dict) else {}
    args: Json = None
    with suppress(msgspec.DecodeError, RecursionError):  # a model's words need not be JSON
        args = msgspec.json.decode(_str(named.get("arguments")) or "{}")
    given = args if isinstance(args, dict) else {}
    return Call(_str(named.get("name")) or "", given, _str(made.get("id")))


def _str(value: Json) -> str | None:
    return value if isinstance(value, str) else None
