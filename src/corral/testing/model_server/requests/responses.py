"""What a Responses request says: its history, its system prompt, its tools."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from corral.testing.model_server.fields import arguments, result, string, tables, texts
from corral.testing.model_server.request import Call, Message, ToolResult
from corral.testing.model_server.wire import unsigned
from corral.values import Json

INSTRUCTIONS = ("system", "developer")
"""Roles that say how to behave: no entries of the history."""


def system(body: dict[str, Json]) -> str:
    said = list(texts(body.get("instructions")))
    for item in tables(body.get("input")):
        if item.get("role") in INSTRUCTIONS:
            said.extend(texts(item.get("content")))
    return "\n".join(said)


def history(sent: Json) -> list[Message]:
    """What the model said in one answer comes as several items; here it is one message."""
    if isinstance(sent, str):
        return [Message("user", texts=(sent,))]
    entries: list[Message] = []
    for message in _items(sent):
        if message.role == "model" and entries and entries[-1].role == "model":
            entries[-1] = _joined(entries[-1], message)
        else:
            entries.append(message)
    return entries


def tools(declarations: Json) -> Iterator[str]:
    """Functions, and tools whose input is plain text; those of a namespace with its name before
    theirs. Of the vendor's own, which have no name, the one that searches for more of them."""
    for tool in tables(declarations):
        match tool:
            case {"type": "namespace", "name": str(space)}:
                yield from (f"{space}__{name}" for name in tools(tool.get("tools")))
            case {"name": str(name)} | {"type": "tool_search" as name}:
                yield name
            case _:
                pass


def declared(body: dict[str, Json], name: str) -> tuple[str, dict[str, Json]]:
    """How a call of this tool is spelt: the type of its item, and what names it there."""
    for tool in _declarations(body):
        match tool:
            case {"type": "custom", "name": str(own)} if own == name:
                return "custom_tool_call", {"name": name}
            case {"type": "namespace", "name": str(space)} if name.startswith(f"{space}__"):
                return "function_call", {"name": name[len(space) + 2 :], "namespace": space}
            case _:
                pass
    space, _, own = name.rpartition("__")
    if space.startswith("mcp__") and "tool_search" in tools(body.get("tools")):
        return "function_call", {"name": own, "namespace": space}  # found by searching
    return "function_call", {"name": name}


def _declarations(body: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Of the request, and those that Codex puts among its input instead."""
    for holder in (body, *tables(body.get("input"))):
        for tool in tables(holder.get("tools")):
            yield tool
            if tool.get("name") == "functions":
                yield from tables(tool.get("tools"))


def _items(sent: Json) -> Iterator[Message]:
    """A result names only its call, so names are looked up in what came before."""
    called: dict[str | None, str] = {}
    for item in tables(sent):
        id = string(item.get("call_id"))
        match item.get("type", "message"):
            case "message" if item.get("role") in INSTRUCTIONS:
                pass
            case "message":
                role = "model" if item.get("role") == "assistant" else "user"
                yield Message(role, texts=texts(item.get("content")))
            case "reasoning":
                yield _reasoning(item)
            case "function_call" | "custom_tool_call" as kind:
                name = called[id] = string(item.get("name")) or ""
                plain = {"input": item.get("input")}
                args = arguments(item.get("arguments")) if kind == "function_call" else plain
                yield Message("model", calls=(Call(name, args, id),))
            case "function_call_output" | "custom_tool_call_output":
                returned = ToolResult(called.get(id, ""), result(item.get("output")), id)
                yield Message("user", results=(returned,))
            case _:
                pass


def _reasoning(item: dict[str, Json]) -> Message:
    thoughts = texts(item.get("summary")) + texts(item.get("content"))
    sealed = string(item.get("encrypted_content"))
    signatures = () if sealed is None else (unsigned(sealed),)
    return Message("model", thoughts=thoughts, signatures=signatures)


def _joined(one: Message, other: Message) -> Message:
    return msgspec.structs.replace(
        one,
        texts=one.texts + other.texts,
        thoughts=one.thoughts + other.thoughts,
        calls=one.calls + other.calls,
        signatures=one.signatures + other.signatures,
    )
