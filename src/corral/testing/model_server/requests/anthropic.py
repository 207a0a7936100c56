"""What a Messages request says: its history, its system prompt, its tools."""

from __future__ import annotations

from collections.abc import Iterator

from corral.testing.model_server.fields import result, string, tables, texts
from corral.testing.model_server.request import Call, Message, ToolResult
from corral.testing.model_server.wire import unsigned
from corral.values import Json

CONTEXT = "<system-reminder>"
"""How Claude Code opens the texts that it puts around the user's own words."""


def system(body: dict[str, Json]) -> str:
    """The field of that name, and messages of that role, which newer models take."""
    said = list(texts(body.get("system")))
    for entry in tables(body.get("messages")):
        if entry.get("role") == "system":
            said.extend(texts(entry.get("content")))
    return "\n".join(said)


def history(messages: Json) -> Iterator[Message]:
    """A result names only its call, so names are looked up in what came before."""
    called: dict[str, str] = {}
    for entry in tables(messages):
        if entry.get("role") != "system":
            message = _message(entry, called)
            called.update({call.id: call.name for call in message.calls if call.id is not None})
            yield message


def tools(declarations: Json) -> Iterator[str]:
    return (name for tool in tables(declarations) if isinstance(name := tool.get("name"), str))


def _message(entry: dict[str, Json], called: dict[str, str]) -> Message:
    content = entry.get("content")
    said: list[str] = []
    context: list[str] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    results: list[ToolResult] = []
    signatures: list[str] = []
    for block in (
        [{"type": "text", "text": content}] if isinstance(content, str) else tables(content)
    ):
        match block:
            case {"type": "text", "text": str(text)}:
                (context if text.startswith(CONTEXT) else said).append(text)
            case {"type": "thinking"}:
                thoughts.append(string(block.get("thinking")) or "")
                signatures.append(unsigned(string(block.get("signature")) or ""))
            case {"type": "redacted_thinking", "data": str(data)}:
                signatures.append(unsigned(data))
            case {"type": "tool_use"}:
                args = block.get("input")
                name, given = (
                    string(block.get("name")) or "",
                    args if isinstance(args, dict) else {},
                )
                calls.append(Call(name, given, string(block.get("id"))))
            case {"type": "tool_result"}:
                id = string(block.get("tool_use_id"))
                returned, failed = result(block.get("content")), block.get("is_error") is True
                results.append(ToolResult(called.get(id or "", ""), returned, id, failed))
            case _:
                pass
    return Message(
        role="model" if entry.get("role") == "assistant" else "user",
        texts=tuple(said),
        context=tuple(context),
        thoughts=tuple(thoughts),
        calls=tuple(calls),
        results=tuple(results),
        signatures=tuple(signatures),
    )
