"""What a Gemini request says: its history, its system prompt, its tools.

Read leniently: a client under test may send anything, and what it sent is for
the test to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from corral.testing.model_server.request import Call, Message, ToolResult
from corral.testing.model_server.wire import unsigned
from corral.values import Json

CONTEXT = "<session_context>"
"""How the Gemini CLI opens the text that it puts before the first prompt, in the same message."""


def message(entry: Json) -> Message:
    texts: list[str] = []
    context: list[str] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    results: list[ToolResult] = []
    signatures: list[str] = []
    content = entry if isinstance(entry, dict) else {}
    for part in items(get(content, "parts")):
        if not isinstance(part, dict):
            continue
        if isinstance(text := part.get("text"), str):
            if part.get("thought") is True:
                thoughts.append(text)
            else:
                (context if text.startswith(CONTEXT) else texts).append(text)
        if isinstance(made := get(part, "functionCall"), dict):
            args = made.get("args")
            name = _str(made.get("name")) or ""
            calls.append(Call(name, args if isinstance(args, dict) else {}, _str(made.get("id"))))
        if isinstance(done := get(part, "functionResponse"), dict):
            name = _str(done.get("name")) or ""
            results.append(ToolResult(name, done.get("response"), _str(done.get("id"))))
        if isinstance(signature := get(part, "thoughtSignature"), str):
            signatures.append(unsigned(signature))
    return Message(
        role=_str(get(content, "role")) or "user",
        texts=tuple(texts),
        context=tuple(context),
        thoughts=tuple(thoughts),
        calls=tuple(calls),
        results=tuple(results),
        signatures=tuple(signatures),
    )


def system(instruction: Json) -> str:
    if isinstance(instruction, str):
        return instruction
    return "\n".join(message(instruction).texts)


def tools(declarations: list[Json]) -> Iterator[str]:
    for tool in declarations:
        if isinstance(tool, dict):
            for declared in items(get(tool, "functionDeclarations")):
                if isinstance(declared, dict) and isinstance(name := declared.get("name"), str):
                    yield name


def get(table: dict[str, Json], name: str) -> Json:
    """Google takes ``systemInstruction`` and ``system_instruction`` alike."""
    if name in table:
        return table[name]
    return table.get(re.sub(r"([A-Z])", lambda m: "_" + m[1].lower(), name))


def items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _str(value: Json) -> str | None:
    return value if isinstance(value, str) else None
