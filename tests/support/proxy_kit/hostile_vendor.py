"""Responses of a hostile model server, generated from a seed.

A response starts as one that the vendor might send, with a text and some tool calls. Then parts of
it are changed: the structure of its JSON, how the JSON is written, how events are framed, the media
type, the compression, and the framing of HTTP. Most results are wrong in one or two ways, in which
programs read them differently (``agent_parsers``). Calls whose name begins with ``remove`` are to
be refused. Each call has another number among its arguments, so that a call that was put
together from two is noticed.
"""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from support.model_calls import FORMATS

from corral.values import is_list, is_object

WIRES = tuple(sorted(FORMATS))
Events = list[Any]
NAMES = ("look", "list_files", "search", "find", "remove_all", "remove_one")
REFUSED = "remove"
KEYS = (
    "functionCall",
    "function_call",
    "tool_calls",
    "toolCalls",
    "tool_use",
    "content",
    "parts",
    "candidates",
    "choices",
    "delta",
    "message",
    "item",
    "output",
    "response",
    "input",
    "args",
    "arguments",
    "__proto__",
)


class HostileResponse(NamedTuple):
    data: bytes
    """The response, head and body."""
    body: bytes
    """Its body before compression."""
    changes: tuple[str, ...]
    """What was changed, for a failure."""


class Call(NamedTuple):
    number: int
    name: str

    @property
    def id(self) -> str:
        return f"call-{self.number}"

    @property
    def arguments(self) -> dict[str, Any]:
        return {"path": f"file-{self.number}", "number": self.number}


def hostile_response(wire: str, random: Random) -> HostileResponse:
    changes: list[str] = []
    events = _conversation(wire, random)
    is_stream = random.random() < 0.85
    body_value = _body(wire, random)
    for _ in range(random.choice((0, 0, 0, 1, 1, 1, 2, 3))):
        change = random.choice(STRUCTURE)
        changes.append(change.__name__)
        if is_stream:
            events = change(random, events, wire)
        else:
            [body_value, *_] = change(random, [body_value], wire) or [{}]
    if random.random() < 0.2:
        attack = random.choice(ATTACKS[wire])
        changes.append(attack.__name__)
        events = attack(random, events)
    write = _writer(random, changes)
    body = _framed(random, events, write, changes) if is_stream else write(body_value).encode()
    if random.random() < 0.05:
        changes.append("cut")
        body = body[: random.randrange(len(body) + 1)]
    return HostileResponse(_in_http(random, body, changes, is_stream), body, tuple(changes))


# --- what the vendor might send ---------------------------------------------------------------


def _calls(random: Random) -> list[Call]:
    count = random.choice((0, 1, 1, 2, 3))
    return [Call(random.randrange(10**9), random.choice(NAMES)) for _ in range(count)]


def _conversation(wire: str, random: Random) -> Events:
    return [*STREAMS[wire](random, _calls(random))]


def _pieces(random: Random, text: str) -> list[str]:
    cut = random.randrange(len(text) + 1)
    return random.choice(([text], [text[:cut], text[cut:]], ["", text]))


def _gemini(random: Random, calls: list[Call]) -> Iterator[Any]:
    parts: list[Any] = [{"text": "I look."}, *map(_gemini_call, calls)]
    groups = [parts] if random.random() < 0.3 else [[part] for part in parts]
    for group in groups:
        yield {"candidates": [{"content": {"role": "model", "parts": group}, "index": 0}]}
    yield {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"totalTokenCount": 9}}


def _gemini_call(call: Call) -> Any:
    function = {"id": call.id, "name": call.name, "args": call.arguments}
    return {"functionCall": function, "thoughtSignature": "s"}


def _anthropic(random: Random, calls: list[Call]) -> Iterator[Any]:
    message: Any = {"id": "m", "type": "message", "role": "assistant", "content": []}
    yield {"type": "message_start", "message": {**message, "usage": {"input_tokens": 3}}}
    yield {"type": "ping"}
    for index in range(len(calls) + 1):
        block: Any = {"type": "text", "text": ""}
        changes: list[Any] = [{"type": "text_delta", "text": "I look."}]
        if index:
            call = calls[index - 1]
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            pieces = _pieces(random, json.dumps(call.arguments))
            changes = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for change in changes:
            yield {"type": "content_block_delta", "index": index, "delta": change}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    yield {"type": "message_stop"}


def _responses(random: Random, calls: list[Call]) -> Iterator[Any]:
    empty: Any = {"id": "r", "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": empty}
    content: Any = [{"type": "output_text", "text": "I look.", "annotations": []}]
    message: Any = {"type": "message", "id": "m", "role": "assistant", "content": content}
    place = {"output_index": 0, "item_id": "m", "content_index": 0}
    start: Any = {**message, "content": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": start}
    part = {"type": "output_text", "text": ""}
    yield {"type": "response.content_part.added", **place, "part": part}
    yield {"type": "response.output_text.delta", **place, "delta": "I look."}
    yield {"type": "response.output_item.done", "output_index": 0, "item": message}
    items: list[Any] = [message]
    for index, call in enumerate(calls, 1):
        item = _responses_call(call)
        items.append(item)
        name = "function_call_arguments"
        place = {"output_index": index, "item_id": call.id}
        started = {**item, "arguments": ""}
        yield {"type": "response.output_item.added", "output_index": index, "item": started}
        for piece in _pieces(random, item["arguments"]):
            yield {"type": f"response.{name}.delta", **place, "delta": piece}
        yield {"type": f"response.{name}.done", **place, "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": {"id": "r", "output": items, "usage": {}}}


def _responses_call(call: Call) -> Any:
    return {
        "type": "function_call",
        "id": call.id,
        "call_id": call.id,
        "name": call.name,
        "arguments": json.dumps(call.arguments),
    }


def _chat(random: Random, calls: list[Call]) -> Iterator[Any]:
    yield _chat_chunk({"role": "assistant", "content": "I look."})
    for index, call in enumerate(calls):
        first, *rest = _pieces(random, json.dumps(call.arguments))
        yield _chat_chunk({"tool_calls": [{"index": index, **_chat_call(call, first)}]})
        for piece in rest:
            yield _chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chat_chunk({}, "tool_calls" if calls else "stop")
    yield "[DONE]"


def _chat_chunk(delta: Any, finish: str | None = None) -> Any:
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _chat_call(call: Call, arguments: str | None = None) -> Any:
    text = json.dumps(call.arguments) if arguments is None else arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}


STREAMS: dict[str, Callable[[Random, list[Call]], Iterator[Any]]] = {
    "gemini": _gemini,
    "anthropic": _anthropic,
    "openai": _responses,
    "openai-chat": _chat,
}


def _body(wire: str, random: Random) -> Any:
    """A response that is not streamed."""
    calls = _calls(random)
    if wire == "gemini":
        chunks = [*_gemini(random, calls)]
        return chunks if random.random() < 0.3 else chunks[-2]
    if wire == "anthropic":
        blocks = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in calls
        ]
        return {"type": "message", "content": [{"type": "text", "text": "I look."}, *blocks]}
    if wire == "openai":
        return {"id": "r", "output": [*map(_responses_call, calls)]}
    message = {"role": "assistant", "content": None, "tool_calls": [*map(_chat_call, calls)]}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


# --- changes of the structure -----------------------------------------------------------------


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All (object or list, key or number) in a value."""
    if is_object(value):
        for key in value:
            yield value, key
            yield from _places(value[key])
    elif is_list(value):
        for number in range(len(value)):
            yield value, number
            yield from _places(value[number])


def _place(random: Random, events: Events) -> tuple[Any, Any] | None:
    found = [*_places(events)]
    return random.choice(found) if found else None


def _any_call(wire: str, random: Random) -> Any:
    call = Call(random.randrange(10**9), random.choice(NAMES))
    return {
        "gemini": _gemini_call(call),
        "anthropic": {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": call.arguments,
        },
        "openai": _responses_call(call),
        "openai-chat": {"index": random.randrange(3), **_chat_call(call)},
    }[wire]


def swap_events(random: Random, events: Events, wire: str) -> Events:
    made = [*events]
    if len(made) > 1:
        first, second = random.sample(range(len(made)), 2)
        made[first], made[second] = made[second], made[first]
    return made


def repeat_event(random: Random, events: Events, wire: str) -> Events:
    made = [*events]
    if made:
        made.insert(random.randrange(len(made) + 1), copy.deepcopy(random.choice(made)))
    return made


def drop_event(random: Random, events: Events, wire: str) -> Events:
    made = [*events]
    if len(made) > 1:
        made.pop(random.randrange(len(made)))
    return made


def mix_two_conversations(random: Random, events: Events, wire: str) -> Events:
    """The events of both, in their order."""
    made, others = [*events], _conversation(wire, random)
    place = 0
    for event in others:
        place = random.randint(place, len(made))
        made.insert(place, event)
        place += 1
    return made


def put_a_call_anywhere(random: Random, events: Events, wire: str) -> Events:
    made = copy.deepcopy(events)
    place = _place(random, made)
    if place is not None:
        holder, key = place
        call = _any_call(wire, random)
        wrapped = random.choice((call, [call], {"0": call}, json.dumps(call)))
        if is_list(holder):
            holder.insert(key, wrapped)
        else:
            holder[random.choice((key, random.choice(KEYS)))] = wrapped
    return made


def copy_a_part_elsewhere(random: Random, events: Events, wire: str) -> Events:
    made = copy.deepcopy(events)
    source, target = _place(random, made), _place(random, made)
    if source is not None and target is not None:
        value = copy.deepcopy(source[0][source[1]])
        if is_list(target[0]) or random.random() < 0.5:
            target[0][target[1]] = value
        else:
            target[0][random.choice(KEYS)] = value
    return made


def change_a_type(random: Random, events: Events, wire: str) -> Events:
    made = copy.deepcopy(events)
    place = _place(random, made)
    if place is not None:
        holder, key = place
        value = holder[key]
        wrapped = [[value], {"0": value}, {"__proto__": value}, json.dumps(value)]
        holder[key] = random.choice((*wrapped, None, True, 0, 1, -1, 0.0, "", [], {}))
    return made


def rename_a_key(random: Random, events: Events, wire: str) -> Events:
    made = copy.deepcopy(events)
    found = [(holder, key) for holder, key in _places(made) if is_object(holder)]
    if found:
        holder, key = random.choice(found)
        names = (key.upper(), key.title(), f" {key}", f"{key} ", key.replace("_", ""))
        snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in key)
        holder[random.choice((*names, snake, random.choice(KEYS)))] = holder.pop(key)
    return made


def change_a_string(random: Random, events: Events, wire: str) -> Events:
    """To another string of the same stream, or with a blank."""
    made = copy.deepcopy(events)
    found = [place for place in _places(made) if isinstance(place[0][place[1]], str)]
    if found:
        holder, key = random.choice(found)
        other = random.choice(found)
        text = holder[key]
        holder[key] = random.choice((other[0][other[1]], f" {text}", f"{text}\n", text.upper()))
    return made


STRUCTURE: tuple[Callable[[Random, Events, str], Events], ...] = (
    swap_events,
    repeat_event,
    drop_event,
    mix_two_conversations,
    put_a_call_anywhere,
    put_a_call_anywhere,
    copy_a_part_elsewhere,
    copy_a_part_elsewhere,
    change_a_type,
    change_a_type,
    rename_a_key,
    change_a_string,
)


# --- known attacks ----------------------------------------------------------------------------


def second_candidate(random: Random, events: Events) -> Events:
    parts = [_any_call("gemini", random)]
    both = [{"content": {"parts": parts}}, {"content": {"parts": [{"text": "x"}]}, "index": 1}]
    return [*events, {"candidates": random.sample(both, 2)}]


def candidates_as_object(random: Random, events: Events) -> Events:
    content = {"parts": [_any_call("gemini", random)]}
    return [*events, {"candidates": {"0": {"content": content}}}]


def arguments_in_pieces(random: Random, events: Events) -> Events:
    name = random.choice(NAMES)
    start = {"functionCall": {"name": name, "willContinue": True}}
    piece = {"functionCall": {"partialArgs": [{"jsonPath": "$.path", "stringValue": "x"}]}}
    parts: Any = [start, piece, {"functionCall": {}}]
    return [*events, {"candidates": [{"content": {"parts": parts}}]}]


def message_starts_with_a_call(random: Random, events: Events) -> Events:
    made = copy.deepcopy(events)
    for event in made:
        message = event.get("message") if is_object(event) else None
        if is_object(message):
            message["content"] = [_any_call("anthropic", random)]
    return made


def blocks_by_turns(random: Random, events: Events) -> Events:
    """The changes of one block while another one is open."""
    first, second = _any_call("anthropic", random), _any_call("anthropic", random)
    start = {"type": "content_block_start"}
    delta = {"type": "content_block_delta"}
    made: Events = []
    for index, block in ((7, first), (random.choice((7, 8)), second)):
        made.append({**start, "index": index, "content_block": {**block, "input": {}}})
    for index, block in ((7, second), (8, first)):
        change = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        made.append({**delta, "index": index, "delta": change})
    made += [{"type": "content_block_stop", "index": index} for index in (7, 8)]
    return [*events[:-2], *made, *events[-2:]]


def other_items_at_the_end(random: Random, events: Events) -> Events:
    made = copy.deepcopy(events)
    for event in made:
        if is_object(event) and event.get("type") == "response.completed":
            event["response"] = {"id": "r", "output": [_any_call("openai", random)]}
    return made


def items_by_turns(random: Random, events: Events) -> Events:
    """Two items start before the arguments of the first come."""
    first, second = _any_call("openai", random), _any_call("openai", random)
    kind = "response.function_call_arguments.delta"
    kinds = [event.get("type") for event in events if is_object(event)]
    count = kinds.count("response.output_item.added")
    made: Events = []
    for index, item in enumerate((first, second), count):
        started = {**item, "arguments": ""}
        made.append({"type": "response.output_item.added", "output_index": index, "item": started})
    texts = [first["arguments"], second["arguments"]]
    if random.random() < 0.5:
        texts.reverse()
    for index, text in enumerate(texts, count):
        made.append({"type": kind, "output_index": index, "delta": text})
    for index, item in enumerate((first, second), count):
        made.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*events[:-1], *made, {"type": "response.completed", "response": {"id": "r"}}]


def call_in_an_unknown_namespace(random: Random, events: Events) -> Events:
    made = copy.deepcopy(events)
    for event in made:
        item = event.get("item") if is_object(event) else None
        if is_object(item):
            item["namespace"] = random.choice(NAMES)
    return made


def choices_as_object(random: Random, events: Events) -> Events:
    choice = {"index": 0, "delta": {"tool_calls": [_any_call("openai-chat", random)]}}
    return [*events[:-1], {"id": "r", "choices": {"0": choice}}, *events[-1:]]


def second_choice(random: Random, events: Events) -> Events:
    choice = {"index": 1, "delta": {"tool_calls": [_any_call("openai-chat", random)]}}
    rest = {"index": 0, "delta": {"content": "x"}}
    return [*events[:-1], {"id": "r", "choices": random.sample([choice, rest], 2)}, *events[-1:]]


def legacy_call(random: Random, events: Events) -> Events:
    call = _any_call("openai-chat", random)["function"]
    return [*events[:-1], _chat_chunk({"function_call": call}), *events[-1:]]


def one_number_for_two_calls(random: Random, events: Events) -> Events:
    calls = [{**_any_call("openai-chat", random), "index": 0} for _ in range(2)]
    same = random.choice(("id", "index"))
    calls[1][same] = calls[0][same]
    made = [_chat_chunk({"tool_calls": [call]}) for call in calls]
    return [events[0], *made, *events[1:]]


def call_after_the_end(random: Random, events: Events) -> Events:
    return [*events, _chat_chunk({"tool_calls": [_any_call("openai-chat", random)]}, "stop")]


ATTACKS: dict[str, tuple[Callable[[Random, Events], Events], ...]] = {
    "gemini": (second_candidate, candidates_as_object, arguments_in_pieces),
    "anthropic": (message_starts_with_a_call, blocks_by_turns),
    "openai": (other_items_at_the_end, items_by_turns, call_in_an_unknown_namespace),
    "openai-chat": (
        choices_as_object,
        second_choice,
        legacy_call,
        one_number_for_two_calls,
        call_after_the_end,
    ),
}


# --- how JSON is written ----------------------------------------------------------------------


def _writer(random: Random, changes: list[str]) -> Callable[[Any], str]:
    style = random.choice(("plain", "plain", "plain", "blanks", "escapes", "repeated keys"))
    if style == "plain":
        return lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    changes.append(style)
    if style == "blanks":
        return lambda value: json.dumps(value, separators=(" ,\t", " :  "))
    return lambda value: _written(random, value, style)


def _written(random: Random, value: Any, style: str) -> str:
    if is_list(value):
        return "[" + ",".join(_written(random, item, style) for item in value) + "]"
    if not is_object(value):
        return json.dumps(value)
    fields: list[str] = []
    for key, inner in value.items():
        name = json.dumps(key)
        if style == "escapes" and random.random() < 0.3 and key:
            name = f'"\\u{ord(key[0]):04x}{json.dumps(key[1:])[1:]}'
        text = f"{name}:{_written(random, inner, style)}"
        if style == "repeated keys" and random.random() < 0.1:
            other = random.choice(("null", "[]", "{}", '"x"', "0", json.dumps([value])))
            fields.append(f"{name}:{other}" if random.random() < 0.5 else text)
        fields.append(text)
    return "{" + ",".join(fields) + "}"


# --- how events are framed --------------------------------------------------------------------


def _framed(
    random: Random, events: Events, write: Callable[[Any], str], changes: list[str]
) -> bytes:
    line_end = random.choice(("\n", "\r\n"))
    if random.random() < 0.04:
        line_end = random.choice(("\r", "\n\r", "\n\n"))
        changes.append(f"line end {line_end!r}")
    odd = random.choice(ODD_FRAMES) if random.random() < 0.25 else None
    if odd is not None:
        changes.append(odd)
    which = random.randrange(max(1, len(events)))
    made: list[str] = []
    for number, event in enumerate(events):
        text = event if isinstance(event, str) else write(event)
        name = event.get("type") if is_object(event) else None
        lines = [f"event: {name}"] if isinstance(name, str) else []
        lines.append(f"data: {text}")
        is_odd = odd is not None and (number == which or random.random() < 0.3)
        made.append(_odd_event(random, odd, lines, text) if is_odd and odd else "\n".join(lines))
    stream = "\n\n".join(made) + random.choice(("\n\n", "\n\n", "\n\n", "\n", ""))
    if odd == "mark":
        stream = "\ufeff" + stream
    data = stream.replace("\n", line_end).encode("utf-8", "replace")
    return data.replace(b"?\x00", b"\xff") if odd == "bytes" else data


ODD_FRAMES = (
    "blank before",
    "tab before",
    "line separator before",
    "blank before the colon",
    "no blank",
    "two blanks",
    "no colon",
    "capitals",
    "two lines",
    "return in a line",
    "call in a comment",
    "two values",
    "done before",
    "other name",
    "no name",
    "name alone",
    "zero",
    "bytes",
    "mark",
    "separator inside",
    "blank line inside",
    "other field",
    "junk",
)


def _odd_event(random: Random, odd: str, lines: list[str], text: str) -> str:
    *names, data = lines
    cut = random.randrange(len(text) + 1)
    other = {
        "blank before": [*names, f" {data}"],
        "tab before": [*names, f"\t{data}"],
        "line separator before": [*names, f"\u2028{data}"],
        "blank before the colon": [*names, f"data : {text}"],
        "no blank": [*names, f"data:{text}"],
        "two blanks": [*names, f"data:  {text}"],
        "no colon": [*names, "data", data],
        "capitals": [*names, f"Data: {text}"],
        "two lines": [*names, f"data: {text[:cut]}", f"data: {text[cut:]}"],
        "return in a line": [*names, f": comment\r{data}"],
        "call in a comment": [*names, ": comment", data, f": {data}"],
        "two values": [*names, f"{data}{text}"],
        "done before": ["data: [DONE]", "", *names, data],
        "other name": ["event: ping", data],
        "no name": [data],
        "name alone": [*names, "", data],
        "zero": [*names, f"{data}\0"],
        "bytes": [*names, f"{data}?\0"],
        "separator inside": [*names, data.replace(",", ",\u2028", 1)],
        "blank line inside": [*names, data.replace(",", ",\n\n", 1)],
        "other field": ["id: 1", "retry: 10", *names, data, "other: x"],
        "junk": ["<html>", *names, data],
    }
    return "\n".join(other.get(odd, lines))


# --- HTTP -------------------------------------------------------------------------------------

STREAM, JSON = "text/event-stream", "application/json"
ODD_TYPES = ("text/html", "text/plain", "", "application/x-ndjson", "TEXT/EVENT-STREAM; charset=x")


def _in_http(random: Random, body: bytes, changes: list[str], is_stream: bool) -> bytes:
    kind = STREAM if is_stream else JSON
    if random.random() < 0.08:
        kind = random.choice((STREAM, JSON, *ODD_TYPES))
        changes.append(f"type {kind}")
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {kind}"]
    if random.random() < 0.06:
        status = random.choice((201, 203, 206, 204, 304, 307, 308, 401, 404, 429, 500, 600))
        lines[0] = f"HTTP/1.1 {status} X"
        changes.append(f"status {status}")
    if random.random() < 0.1:
        odd = random.choice(ODD_HEADERS)
        changes.append(f"header {odd!r}")
        lines.append(odd)
    body = _compressed(random, body, lines, changes)
    framing = random.choice(("length", "length", "chunks", "chunks", "end"))
    if framing == "length":
        length = len(body)
        if random.random() < 0.05 and length:
            length -= random.randrange(min(length, 50))
            changes.append("shorter length")
        lines.append(f"Content-Length: {length}")
    elif framing == "chunks":
        lines.append("Transfer-Encoding: chunked")
        body = _in_chunks(random, body, changes)
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    if random.random() < 0.05:
        head = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + head
        changes.append("interim")
    if random.random() < 0.05 and framing != "end":
        body += b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        changes.append("second response")
    return head + body


ODD_HEADERS = (
    "Content-Type: application/json",
    "Content-Type: text/event-stream",
    "Content-Length: 5",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding : chunked",
    "Location: http://127.0.0.1:1/",
    "X-Note: a\r\n folded: line",
    "Connection: close",
    "Trailer: Content-Type",
)


def _compressed(random: Random, body: bytes, lines: list[str], changes: list[str]) -> bytes:
    if random.random() >= 0.1:
        return body
    coding = random.choice(("gzip", "deflate", "twice", "wrong", "cut", "br"))
    changes.append(f"compression {coding}")
    lines.append(f"Content-Encoding: {coding if coding in ('deflate', 'br') else 'gzip'}")
    if coding == "deflate":
        return zlib.compress(body)
    if coding == "twice":
        half = len(body) // 2
        return gzip.compress(body[:half]) + gzip.compress(body[half:])
    if coding == "cut":
        return gzip.compress(body)[:-10]
    return gzip.compress(body) if coding == "gzip" else body


def _in_chunks(random: Random, body: bytes, changes: list[str]) -> bytes:
    size = random.choice((1, 7, 50, 1000, 10**6)) if len(body) < 5000 else 1000
    extension = b";a=b" if random.random() < 0.1 else b""
    made = [
        b"%x%b\r\n%b\r\n" % (len(piece), extension, piece)
        for piece in (body[start : start + size] for start in range(0, len(body), size))
    ]
    trailer = b"Content-Type: text/html\r\n" if random.random() < 0.05 else b""
    if trailer:
        changes.append("trailer")
    return b"".join(made) + b"0\r\n" + trailer + b"\r\n"
