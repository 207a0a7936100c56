"""Responses as the two APIs of OpenAI send them: each as a stream and unstreamed.

The shapes are those of the API reference; a test compares them with the types of the vendor's SDK.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

Item = dict[str, Any]
USAGE: Item = {
    "input_tokens": 81,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
    "output_tokens": 1035,
    "output_tokens_details": {"reasoning_tokens": 832},
    "total_tokens": 1116,
}
CHAT_USAGE: Item = {
    "prompt_tokens": 81,
    "completion_tokens": 1035,
    "total_tokens": 1116,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 832, "audio_tokens": 0},
}


class Answer(NamedTuple):
    stream: bytes
    complete: bytes


def sse(*datas: Item | str, named: bool = False) -> bytes:
    out: list[str] = []
    for data in datas:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        head = f"event: {data['type']}\n" if named and isinstance(data, dict) else ""
        out.append(f"{head}data: {text}\n\n")
    return "".join(out).encode()


# --- Responses -----------------------------------------------------------------------------


def text_item(*pieces: str, id: str = "msg_1", refused: bool = False, **more: Any) -> Item:
    kind = "refusal" if refused else "output_text"
    return {"kind": kind, "pieces": pieces, "id": id, "more": more}


def thought(*summaries: tuple[str, ...], id: str = "rs_1", sealed: str | None = "gAAA==") -> Item:
    return {"kind": "reasoning", "summaries": summaries, "id": id, "sealed": sealed}


def called(name: str, *pieces: str, id: str = "fc_1", call_id: str = "call_1") -> Item:
    return {"kind": "call", "name": name, "pieces": pieces, "id": id, "call_id": call_id}


def responded(*items: Item, end: str = "completed", **more: Any) -> Answer:
    """``more`` goes into the last form of the response: its error, why it is incomplete."""
    numbered = [
        dict(event, sequence_number=n) for n, event in enumerate(_item_events(items, end, more))
    ]
    complete = numbered[-1]["response"]
    return Answer(sse(*numbered, named=True), json.dumps(complete).encode())


def response(status: str, output: list[Item], **more: Any) -> Item:
    return {
        "id": "resp_67c9fdcecf488190bdd9a0409de3a1ec",
        "object": "response",
        "created_at": 1741294021,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": "gpt-5.5-2026-04-01",
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        **more,
    }


def _item_events(items: tuple[Item, ...], end: str, more: Item) -> Iterator[Item]:
    yield {"type": "response.created", "response": response("in_progress", [])}
    yield {"type": "response.in_progress", "response": response("in_progress", [])}
    output: list[Item] = []
    calls = [place for place, item in enumerate(items) if item["kind"] == "call"]
    for place, item in enumerate(items):
        if item["kind"] == "call":
            output.append(_call(item, "".join(item["pieces"]), "completed"))
            if place == calls[0]:
                yield from _calls(items, calls)
        elif item["kind"] == "reasoning":
            output.append(_thinking(item))
            yield from _reasoning(item, place)
        else:
            output.append(_message(item, "completed"))
            yield from _saying(item, place)
    last = response(end, output, **{"usage": USAGE, **more})
    yield {"type": f"response.{end}", "response": last}


def _message(item: Item, status: str) -> Item:
    text = "".join(item["pieces"])
    content: list[Item] = []
    if status == "completed":
        part: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        refusal: Item = {"type": "refusal", "refusal": text}
        content = [refusal if item["kind"] == "refusal" else part]
    complete = {"id": item["id"], "type": "message", "status": status, "role": "assistant"}
    return {**complete, "content": content, **item["more"]}


def _saying(item: Item, place: int) -> Iterator[Item]:
    at = {"item_id": item["id"], "output_index": place, "content_index": 0}
    text = "".join(item["pieces"])
    yield _event("output_item.added", output_index=place, item=_message(item, "in_progress"))
    if item["kind"] == "refusal":
        yield _event("content_part.added", **at, part={"type": "refusal", "refusal": ""})
        for piece in item["pieces"]:
            yield _event("refusal.delta", **at, delta=piece)
        yield _event("refusal.done", **at, refusal=text)
        yield _event("content_part.done", **at, part={"type": "refusal", "refusal": text})
    else:
        part: Item = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield _event("content_part.added", **at, part=part)
        for piece in item["pieces"]:
            yield _event("output_text.delta", **at, delta=piece, logprobs=[], obfuscation="aB3")
        yield _event("output_text.done", **at, text=text, logprobs=[])
        yield _event("content_part.done", **at, part={**part, "text": text})
    yield _event("output_item.done", output_index=place, item=_message(item, "completed"))


def _thinking(item: Item) -> Item:
    texts = ["".join(pieces) for pieces in item["summaries"]]
    summary = [{"type": "summary_text", "text": text} for text in texts]
    complete: Item = {"id": item["id"], "type": "reasoning", "summary": summary}
    return complete if item["sealed"] is None else {**complete, "encrypted_content": item["sealed"]}


def _reasoning(item: Item, place: int) -> Iterator[Item]:
    started: Item = {"id": item["id"], "type": "reasoning", "summary": []}
    if item["sealed"] is not None:
        started["encrypted_content"] = "incomplete"  # the vendor warns of it: only the last counts
    yield _event("output_item.added", output_index=place, item=started)
    for number, pieces in enumerate(item["summaries"]):
        at = {"item_id": item["id"], "output_index": place, "summary_index": number}
        part = {"type": "summary_text", "text": ""}
        text = "".join(pieces)
        yield _event("reasoning_summary_part.added", **at, part=part)
        for piece in pieces:
            yield _event("reasoning_summary_text.delta", **at, delta=piece, obfuscation="x")
        yield _event("reasoning_summary_text.done", **at, text=text)
        yield _event("reasoning_summary_part.done", **at, part={**part, "text": text})
    yield _event("output_item.done", output_index=place, item=_thinking(item))


def _call(item: Item, arguments: str, status: str) -> Item:
    return {
        "id": item["id"],
        "type": "function_call",
        "status": status,
        "arguments": arguments,
        "call_id": item["call_id"],
        "name": item["name"],
    }


def _calls(items: tuple[Item, ...], places: list[int]) -> Iterator[Item]:
    """Calls that run in parallel, their pieces by turns."""
    for place in places:
        started = _call(items[place], "", "in_progress")
        yield _event("output_item.added", output_index=place, item=started)
    for turn in range(max(len(items[place]["pieces"]) for place in places)):
        for place in places:
            for piece in items[place]["pieces"][turn : turn + 1]:
                at = {"item_id": items[place]["id"], "output_index": place}
                yield _event("function_call_arguments.delta", **at, delta=piece)
    for place in places:
        item = items[place]
        text = "".join(item["pieces"])
        at = {"item_id": item["id"], "output_index": place, "name": item["name"]}
        yield _event("function_call_arguments.done", **at, arguments=text)
        yield _event("output_item.done", output_index=place, item=_call(item, text, "completed"))


def _event(kind: str, **fields: Any) -> Item:
    return {"type": f"response.{kind}", **fields}


# --- chat completions ----------------------------------------------------------------------


def chunk(delta: Item | None = None, finish: str | None = None, **more: Any) -> Item:
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
        "object": "chat.completion.chunk",
        "created": 1741294021,
        "model": "gpt-5.5-2026-04-01",
        "choices": [choice],
        **more,
    }


def completion(message: Item, finish: str = "stop", **more: Any) -> bytes:
    reported = {"role": "assistant", "content": None, **message}
    complete = {
        "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
        "object": "chat.completion",
        "created": 1741294021,
        "model": "gpt-5.5-2026-04-01",
        "choices": [{"index": 0, "message": reported, "logprobs": None, "finish_reason": finish}],
        "usage": CHAT_USAGE,
        **more,
    }
    return json.dumps(complete).encode()


def piece_of(index: int | None, arguments: str = "", **more: Any) -> Item:
    """A delta of one call; ``id`` and ``name`` where it is the first."""
    name = more.pop("name", None)
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call: Item = {**more, "function": function}
    if more:
        call["type"] = "function"
    if index is not None:
        call["index"] = index
    return {"tool_calls": [call]}
