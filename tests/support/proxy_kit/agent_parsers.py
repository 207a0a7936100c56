"""How agents read tool calls from the response of a model, after the code of their programs.

Each function takes the body of a response and returns the calls that a program would make. What
matters of a program is repeated here: how it finds events in the bytes, and where it looks for
calls. Where it throws an error later, the calls that it has found until then are returned, so that
an oracle finds too much rather than too little. ``PARSERS`` has those of each wire format.

- Gemini CLI: the regular expression and the functions of its ``@google/genai``; pi has a newer one.
- Anthropic's and OpenAI's SDKs (Claude Code, pi, Qwen Code): their ``SSEDecoder``.
- OpenCode: ``eventsource-parser`` and the providers of the AI SDK.
- pi: its own parser for Anthropic, and for each API a way to join pieces.
- Codex: the crate ``eventsource-stream``, which follows the standard, and its ``ResponseItem``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from corral.values import is_list, is_object

JS_BLANKS = "\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
"""What ``\\s`` and ``trim()`` mean in JavaScript."""
GEMINI_LINE = re.compile(
    f"[{JS_BLANKS}]*data: ([^\n\r\u2028\u2029]*)(?:\n\n|\r\r|\r\n\r\n)",
)
NOT_JSON = "text that is not JSON"
_BLANKS = re.compile(f"^[{JS_BLANKS}]+|[{JS_BLANKS}]+$")


class ReadCall(NamedTuple):
    """A tool call that a program reads."""

    name: str
    arguments: str
    """As JSON with sorted keys."""


class Event(NamedTuple):
    name: str | None
    data: str


Parser = Callable[[bytes], list[ReadCall]]
Reader = Callable[[Iterator[Event]], Iterator[ReadCall]]
"""Reads the calls from the events of a stream. Errors of Python stand for those of the program."""


def js_parse(text: str, *, strict: bool = True) -> Any:
    """``JSON.parse``: the last of several equal keys counts. Without ``strict``, strings may have
    control characters, as for pi."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse, strict=strict)


def js_get(value: Any, key: str | int) -> Any:
    """``value?.[key]``; None for undefined and null."""
    if is_object(value):
        return value.get(str(key))
    if is_list(value) and isinstance(key, int):
        return value[key] if 0 <= key < len(value) else None
    return None


def js_path(value: Any, *keys: str | int) -> Any:
    for key in keys:
        value = js_get(value, key)
    return value


def trim(text: str) -> str:
    return _BLANKS.sub("", text)


def js_text(data: bytes) -> str:
    """``TextDecoder``: bytes that are not UTF-8 are replaced, and a byte order mark is removed."""
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def made(name: object, arguments: object) -> ReadCall:
    """``arguments``: an object, or JSON in a string."""
    if isinstance(arguments, str):
        try:
            arguments = js_parse(arguments) if trim(arguments) else {}
        except ValueError:
            arguments = {NOT_JSON: arguments}  # some programs read the beginning of it
    name = name if isinstance(name, str) else json.dumps(name) if name else ""
    return ReadCall(name, json.dumps(_with_js_numbers(arguments or {}), sort_keys=True))


def _with_js_numbers(value: Any) -> Any:
    """JavaScript has one type of numbers: 1.0 is 1."""
    if is_object(value):
        return {key: _with_js_numbers(inner) for key, inner in value.items()}
    if is_list(value):
        return list(map(_with_js_numbers, value))
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def js_joined(text: Any, more: Any) -> str:
    """``text += more``."""
    return f"{text}{'undefined' if more is None else more}"


def js_key(value: Any) -> str:
    """A value as the key of an object or a map."""
    return json.dumps(value)


# --- events ---------------------------------------------------------------------------------


def gemini_cli_events(body: bytes) -> Iterator[Event]:
    """``/^\\s*data: (.*)(?:\\n\\n|\\r\\r|\\r\\n\\r\\n)/`` from the start of what is left."""
    text, start = js_text(body), 0
    while found := GEMINI_LINE.match(text, start):
        yield Event(None, found[1])
        start = found.end()


def genai_events(body: bytes) -> Iterator[Event]:
    """A newer version: split at blank lines, and trimmed."""
    for part in re.split("\n\n|\r\r|\r\n\r\n", js_text(body))[:-1]:
        trimmed = trim(part)
        if trimmed.startswith("data:"):
            yield Event(None, trim(trimmed[5:]))


def sdk_events(body: bytes) -> Iterator[Event]:
    """``SSEDecoder`` of Anthropic's and OpenAI's SDKs. The last event needs no blank line."""
    name: str | None = None
    data: list[str] = []
    for line in [*re.split("\r\n|\n|\r", js_text(body)), ""]:
        if not line:
            if name or data:
                yield Event(name, "\n".join(data))
            name, data = None, []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)


def standard_events(body: bytes) -> Iterator[Event]:
    """``eventsource-parser`` and ``eventsource-stream``, which follow the standard."""
    lines = re.split("\r\n|\n|\r", js_text(body))
    name: str | None = None
    data: list[str] = []
    for line in lines[:-1]:
        if not line:
            if data:
                yield Event(name, "\n".join(data))
            name, data = None, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value or None
        elif field == "data":
            data.append(value)


def parsed(events: Iterator[Event]) -> Iterator[Any]:
    """The JSON of events; the AI SDK leaves out what is not JSON, and goes on after ``[DONE]``."""
    for event in events:
        with suppress(ValueError):
            yield js_parse(event.data)


def parsed_by_sdk(events: Iterator[Event]) -> Iterator[Any]:
    """OpenAI's SDK ends at ``[DONE]``, and throws what is not JSON."""
    for event in events:
        if event.data.startswith("[DONE]"):
            return
        yield js_parse(event.data)


# --- Gemini ---------------------------------------------------------------------------------


def gemini_cli(events: Iterator[Event]) -> Iterator[ReadCall]:
    """The calls of the first candidate, with trimmed names."""
    for event in events:
        yield from gemini_chunk(js_parse(event.data))


def gemini_chunk(chunk: Any) -> Iterator[ReadCall]:
    for part in list(js_path(chunk, "candidates", 0, "content", "parts") or ()):
        call = js_get(part, "functionCall")
        if call:
            name = trim(str(js_get(call, "name") or "")) or "generic_tool"
            yield made(name, js_get(call, "args") or {})


def pi_gemini(events: Iterator[Event]) -> Iterator[ReadCall]:
    for event in events:
        for part in list(js_path(js_parse(event.data), "candidates", 0, "content", "parts") or ()):
            call = js_get(part, "functionCall")
            if call:
                yield made(js_get(call, "name"), js_get(call, "args") or {})


def ai_sdk_gemini(events: Iterator[Event]) -> Iterator[ReadCall]:
    """With arguments in a string, and arguments in pieces (the name alone counts here)."""
    for chunk in parsed(events):
        for part in list(js_path(chunk, "candidates", 0, "content", "parts") or ()):
            call = js_get(part, "functionCall")
            name = js_get(call, "name")
            if name is not None:
                arguments = js_get(call, "args")
                pieces = js_get(call, "partialArgs")
                yield made(name, {"pieces": pieces} if pieces else arguments)


# --- Anthropic ------------------------------------------------------------------------------

MESSAGE_EVENTS = (
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
)


def anthropic_sdk(events: Iterator[Event]) -> Iterator[ReadCall]:
    """The content of the message at its start counts. A block is added to the end, and a change
    belongs to the one with its number."""
    content: list[Any] = []
    texts: dict[int, str] = {}
    with suppress(ValueError, TypeError, AttributeError, KeyError, IndexError):
        for event in events:
            if event.name not in MESSAGE_EVENTS:
                continue
            value = js_parse(event.data)
            kind = value["type"]
            if kind == "message_start":
                content = list(value["message"].get("content") or ())
            elif kind == "content_block_start":
                content.append(value["content_block"])
            elif kind == "content_block_delta":
                index = value["index"]
                block = content[index]  # ``at``: a negative number counts from the end
                if value["delta"]["type"] == "input_json_delta" and is_use(block):
                    at = index % len(content)
                    texts[at] = texts.get(at, "") + value["delta"]["partial_json"]
    for number, block in enumerate(content):
        if is_use(block):
            yield made(js_get(block, "name"), texts.get(number) or js_get(block, "input"))


def is_use(block: Any) -> bool:
    return bool(js_get(block, "type") == "tool_use")


def pi_anthropic(events: Iterator[Event]) -> Iterator[ReadCall]:
    """A change belongs to the first block that has its number and has not stopped."""
    blocks: list[dict[str, Any]] = []
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        for event in events:
            if event.name == "error":
                break
            if event.name not in MESSAGE_EVENTS:
                continue
            value = js_parse(event.data, strict=False)
            kind = js_get(value, "type")
            if kind == "content_block_start":
                given = value["content_block"]
                given = given if is_object(given) else {}
                blocks.append({**given, "at": js_key(value.get("index")), "text": ""})
            elif kind in ("content_block_delta", "content_block_stop"):
                at = js_key(value.get("index"))
                block = next((b for b in blocks if b["at"] == at), None)
                if block is None:
                    continue
                if kind == "content_block_stop":
                    block["at"] = None
                    block["input"] = block["text"]
                elif js_path(value, "delta", "type") == "input_json_delta":
                    piece = js_path(value, "delta", "partial_json")
                    block["text"] = js_joined(block["text"], piece)
    for block in blocks:
        if block.get("type") == "tool_use":
            yield made(block.get("name"), block["text"] or block.get("input"))


def ai_sdk_anthropic(events: Iterator[Event]) -> Iterator[ReadCall]:
    """Calls in the message at its start are made at once; others when their block stops."""
    blocks: dict[Any, list[str]] = {}
    for value in parsed(events):
        with suppress(TypeError, KeyError, AttributeError):
            kind = value["type"]
            if kind == "message_start":
                for block in list(value["message"].get("content") or ()):
                    if is_use(block):
                        yield made(block.get("name"), block.get("input"))
            elif kind == "content_block_start":
                block = value["content_block"]
                if is_use(block):
                    given = block.get("input")
                    text = json.dumps(given) if given else ""
                    blocks[js_key(value.get("index"))] = [block.get("name"), text]
            elif kind == "content_block_delta":
                at = js_key(value.get("index"))
                if value["delta"]["type"] == "input_json_delta" and at in blocks:
                    blocks[at][1] += value["delta"]["partial_json"]
            elif kind == "content_block_stop" and js_key(value.get("index")) in blocks:
                name, text = blocks.pop(js_key(value.get("index")))
                yield made(name, text)


# --- OpenAI's responses ---------------------------------------------------------------------


def codex(events: Iterator[Event]) -> Iterator[ReadCall]:
    """Each item, at its end."""
    for value in parsed(events):
        if js_get(value, "type") == "response.output_item.done":
            yield from item_call(js_get(value, "item"))


def item_call(item: Any) -> Iterator[ReadCall]:
    kind = js_get(item, "type")
    if kind == "function_call":
        group = js_get(item, "namespace")
        name = js_get(item, "name")
        yield made(f"{group}__{name}" if group else name, js_get(item, "arguments"))
    elif kind == "custom_tool_call":
        yield made(js_get(item, "name"), {"input": js_get(item, "input")})
    elif kind in ("local_shell_call", "shell_call", "apply_patch_call", "computer_call"):
        yield made(kind.removesuffix("_call"), item)


def ai_sdk_responses(events: Iterator[Event]) -> Iterator[ReadCall]:
    """The same without groups."""
    for value in parsed(events):
        if js_get(value, "type") == "response.output_item.done":
            item = js_get(value, "item")
            if js_get(item, "type") == "function_call":
                yield made(js_get(item, "name"), js_get(item, "arguments"))
            else:
                yield from item_call(item)


def pi_responses(events: Iterator[Event]) -> Iterator[ReadCall]:
    """Changes belong to the item that started last, whatever their number is."""
    current: list[Any] | None = None
    calls: list[list[Any]] = []
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        for value in parsed_by_sdk(events):
            kind, item = js_get(value, "type"), js_get(value, "item")
            is_call = js_get(item, "type") == "function_call"
            if kind == "response.output_item.added":
                if is_call:
                    current = [item.get("name"), item.get("arguments") or ""]
                    calls.append(current)
                elif js_get(item, "type") in ("message", "reasoning"):
                    current = None
            elif kind == "response.function_call_arguments.delta" and current:
                current[1] = js_joined(current[1], value.get("delta"))
            elif kind == "response.function_call_arguments.done" and current:
                current[1] = value["arguments"]
            elif kind == "response.output_item.done" and is_call:
                if current is None:
                    calls.append([item.get("name"), item.get("arguments")])
                elif not current[1]:
                    current[1] = item.get("arguments")
                current = None
    yield from (made(name, text) for name, text in calls)


def responses_body(value: Any) -> Iterator[ReadCall]:
    for item in list(js_get(value, "output") or ()):
        yield from item_call(item)


def response_objects(events: Iterator[Event]) -> Iterator[ReadCall]:
    """OpenAI's SDK: the last event has the complete response, which programs may use instead."""
    for value in parsed(events):
        yield from responses_body(js_get(value, "response"))


# --- chat completions -----------------------------------------------------------------------


def pi_chat(events: Iterator[Event]) -> Iterator[ReadCall]:
    """Pieces are joined by their number, else by their id."""
    blocks: list[list[Any]] = []
    by_index: dict[Any, list[Any]] = {}
    by_id: dict[Any, list[Any]] = {}
    with suppress(ValueError, TypeError, AttributeError):
        for value in parsed_by_sdk(events):
            choices = js_get(value, "choices")
            choice = js_get(choices, 0) if is_list(choices) else None
            for call in list(js_path(choice, "delta", "tool_calls") or ()):
                index, call_id = js_key(js_get(call, "index")), js_key(js_get(call, "id"))
                function = js_get(call, "function")
                block = by_index.get(index) or by_id.get(call_id)
                if block is None:
                    block = [js_get(function, "name") or "", ""]
                    blocks.append(block)
                if index.lstrip("-")[:1].isdigit():
                    by_index[index] = block
                if js_get(call, "id"):
                    by_id[call_id] = block
                block[0] = block[0] or js_get(function, "name")
                block[1] = js_joined(block[1], js_get(function, "arguments") or "")
    yield from (made(name, text) for name, text in blocks)


def ai_sdk_chat(events: Iterator[Event]) -> Iterator[ReadCall]:
    """Pieces are joined by their number. A call is made when its arguments are complete JSON, or at
    the end; the first choice may be that of an object."""
    calls: dict[Any, list[Any]] = {}
    made_calls: set[Any] = set()
    with suppress(TypeError, AttributeError):
        for value in parsed(events):
            for call in list(js_path(value, "choices", 0, "delta", "tool_calls") or ()):
                index = js_get(call, "index")
                index = js_key(len(calls) if index is None else index)
                function = js_get(call, "function")
                if index in made_calls:
                    continue
                if index not in calls:
                    calls[index] = [js_get(function, "name"), ""]
                calls[index][1] = js_joined(calls[index][1], js_get(function, "arguments") or "")
                with suppress(ValueError):
                    js_parse(calls[index][1])
                    made_calls.add(index)
    yield from (made(name, text) for name, text in calls.values())


def qwen_chat(events: Iterator[Event]) -> Iterator[ReadCall]:
    """Pieces are joined by their id if that is known, else by their number. Another id at the same
    number begins another call. Names are trimmed."""
    calls: list[list[Any]] = []
    by_index: dict[Any, list[Any]] = {}
    by_id: dict[Any, list[Any]] = {}
    with suppress(ValueError, TypeError, AttributeError):
        for value in parsed_by_sdk(events):
            for call in list(js_path(value, "choices", 0, "delta", "tool_calls") or ()):
                index, call_id = js_key(js_get(call, "index") or 0), js_get(call, "id")
                call_id = js_key(call_id) if call_id else None
                function = js_get(call, "function")
                block = by_id.get(call_id) if call_id else by_index.get(index)
                if block is None:
                    block = by_index.get(index)
                    if block is None or (call_id and block[2] and block[2] != call_id):
                        block = ["", "", call_id]
                        calls.append(block)
                by_index[index] = block
                if call_id:
                    by_id[call_id] = block
                block[0] = trim(js_get(function, "name") or "") or block[0]
                block[1] = js_joined(block[1], js_get(function, "arguments") or "")
    yield from (made(name, text) for name, text, _ in calls)


def legacy_chat(events: Iterator[Event]) -> Iterator[ReadCall]:
    """The form before ``tool_calls``, which some programs still read."""
    name, text = "", ""
    with suppress(TypeError, AttributeError):
        for value in parsed(events):
            call = js_path(value, "choices", 0, "delta", "function_call")
            name = js_get(call, "name") or name
            text += js_get(call, "arguments") or ""
    if name:
        yield made(name, text)


# --- bodies that are not streams --------------------------------------------------------------


def gemini_body(value: Any) -> Iterator[ReadCall]:
    for chunk in value if is_list(value) else [value]:
        yield from gemini_chunk(chunk)


def anthropic_body(value: Any) -> Iterator[ReadCall]:
    for block in list(js_get(value, "content") or ()):
        if is_use(block):
            yield made(js_get(block, "name"), js_get(block, "input"))


def chat_body(value: Any) -> Iterator[ReadCall]:
    message = js_path(value, "choices", 0, "message")
    for call in list(js_get(message, "tool_calls") or ()):
        yield made(js_path(call, "function", "name"), js_path(call, "function", "arguments"))
    legacy = js_get(message, "function_call")
    if legacy:
        yield made(js_get(legacy, "name"), js_get(legacy, "arguments"))


def in_stream(events: Callable[[bytes], Iterator[Event]], read: Reader) -> Parser:
    def parse(body: bytes) -> list[ReadCall]:
        found: list[ReadCall] = []
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            for call in read(events(body)):
                found.append(call)
        return found

    return parse


def in_body(read: Callable[[Any], Iterator[ReadCall]]) -> Parser:
    def parse(body: bytes) -> list[ReadCall]:
        found: list[ReadCall] = []
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            for call in read(js_parse(js_text(body))):
                found.append(call)
        return found

    return parse


PARSERS: dict[str, dict[str, Parser]] = {
    "gemini": {
        "gemini": in_stream(gemini_cli_events, gemini_cli),
        "pi": in_stream(genai_events, pi_gemini),
        "opencode": in_stream(standard_events, ai_sdk_gemini),
        "body": in_body(gemini_body),
    },
    "anthropic": {
        "claude": in_stream(sdk_events, anthropic_sdk),
        "pi": in_stream(sdk_events, pi_anthropic),
        "opencode": in_stream(standard_events, ai_sdk_anthropic),
        "body": in_body(anthropic_body),
    },
    "openai": {
        "codex": in_stream(standard_events, codex),
        "pi": in_stream(sdk_events, pi_responses),
        "opencode": in_stream(standard_events, ai_sdk_responses),
        "objects": in_stream(sdk_events, response_objects),
        "body": in_body(responses_body),
    },
    "openai-chat": {
        "pi": in_stream(sdk_events, pi_chat),
        "qwen": in_stream(sdk_events, qwen_chat),
        "opencode": in_stream(standard_events, ai_sdk_chat),
        "old": in_stream(standard_events, legacy_chat),
        "body": in_body(chat_body),
    },
}
"""Wire format → program → how it reads calls."""
