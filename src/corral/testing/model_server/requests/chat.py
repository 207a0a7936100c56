"""What a chat-completions request says: its history, its system prompt, its tools."""

from __future__ import annotations

from collections.abc import Iterator

from corral.testing.model_server.fields import arguments, result, string, tables, texts
from corral.testing.model_server.request import Call, Message, ToolResult
from corral.values import Json

INSTRUCTIONS = ("system", "developer")
"""Roles that say how to behave: no entries of the history."""


def system(messages: Json) -> str:
    said = [texts(entry.get("content")) for entry in tables(messages) if _instructs(entry)]
    return "\n".join(text for part in said for text in part)


def history(messages: Json) -> Iterator[Message]:
    """A result names only its call, so names are looked up in what came before."""
    called: dict[str, str] = {}
    for entry in tables(messages):
        match entry.get("role"):
            case _ if _instructs(entry):
                pass
            case "assistant":
                calls = tuple(map(_call, tables(entry.get("tool_calls"))))
                called.update({call.id: call.name for call in calls if call.id is not None})
                thoughts = texts(entry.get("reasoning_content") or entry.get("reasoning"))
                said = texts(entry.get("content"))
                yield Message("model", texts=said, thoughts=thoughts, calls=calls)
            case "tool":
                id = string(entry.get("tool_call_id"))
                returned = ToolResult(called.get(id or "", ""), result(entry.get("content")), id)
                yield Message("user", results=(returned,))
            case _:
                yield Message("user", texts=texts(entry.get("content")))


def tools(declarations: Json) -> Iterator[str]:
    for declared in tables(declarations):
        match declared:
            case {"function": {"name": str(name)}}:
                yield name
            case _:
                pass


def _instructs(entry: dict[str, Json]) -> bool:
    return entry.get("role") in INSTRUCTIONS


def _call(made: dict[str, Json]) -> Call:
    function = made.get("function")
    named = function if isinstance(function, dict) else {}
    name = string(named.get("name")) or ""
    return Call(name, arguments(named.get("arguments")), string(made.get("id")))
