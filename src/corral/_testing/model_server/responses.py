"""OpenAI's Responses, as its SDK and Codex call it.

Thoughts are the summary of a reasoning item. Their signature is its ``encrypted_content``, which is
sent only if the request's ``include`` asks for it, as OpenAI does. A refusal with text is a
response with a refusal in it; one without text is a filtered response. ``FAILED`` as the finish
reason is a failed response, which is not an HTTP error.

Responses are not stored: ``previous_response_id`` is accepted, but has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from corral._testing.model_server.http import Incoming, ServerResponse
from corral._testing.model_server.openai import (
    CREATED,
    credential,
    env,
    error,
    failure,
    head,
    refuse,
    refuse_key,
    request_body,
    unscripted,
)
from corral._testing.model_server.request import (
    Call,
    Message,
    Request,
    ToolResult,
    arguments,
    items,
    joined,
    result,
    string,
    tables,
    texts,
)
from corral._testing.model_server.script import Turn, pieces
from corral._testing.model_server.wire import (
    build_response,
    call_id,
    decode_signature,
    request_mark,
    signature,
    sse,
    token_counts,
)
from corral.values import Json

__all__ = ["credential", "env", "receive", "refuse", "refuse_key", "reply", "unscripted"]

PATH = re.compile(r"/(?:.*/)?responses/?")
SEALED = "reasoning.encrypted_content"
REASONS = {"MAX_TOKENS": "max_output_tokens", "SAFETY": "content_filter"}
"""Finish reason of a script → why the response is incomplete. Any other is sent in lower case."""
ECHOED: dict[str, Json] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}
"""Fields of the request that the response repeats, and their defaults."""
HALF = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","del\n\n'
INSTRUCTIONS = ("system", "developer")
"""Roles of system prompts, which are not part of the history."""


def receive(incoming: Incoming, lane: str) -> Request | ServerResponse | None:
    sent = request_body(incoming, PATH, "Missing required parameter: 'model'.")
    if not isinstance(sent, dict):
        return sent
    return Request(
        lane=lane,
        method="responses",
        model=str(sent["model"]),
        path=incoming.target,
        headers=incoming.headers,
        body=sent,
        system=system(sent),
        history=tuple(history(sent.get("input"))),
        tools=tuple(tools(sent.get("tools"))),
    )


def reply(request: Request, turn: Turn) -> ServerResponse:
    mark = request_mark(request)
    streamed = request.body.get("stream") is True
    return build_response(
        turn,
        failure(turn, mark),
        (lambda: _stream(request, turn)) if streamed else None,
        lambda: _final_response(request, turn, [item.done for item in _items(request, turn)]),
        HALF,
        head(mark),
    )


class ContentPart(msgspec.Struct, frozen=True):
    """The content of an item, and the names of its events."""

    texts: tuple[str, ...]
    key: str
    """The field of the text, in the part and in its last event."""
    inside: dict[str, Json]
    """The part without its text; empty if the item itself has the text."""
    within: str
    """``content_part`` or ``reasoning_summary_part``."""
    text: str
    """For example ``output_text`` or ``refusal``."""
    index: dict[str, Json]

    @property
    def complete(self) -> dict[str, Json]:
        return {**self.inside, self.key: "".join(self.texts)}


class OutputItem(msgspec.Struct, frozen=True):
    """An item of the output: when it is added, its part if it has one, and when it is done."""

    id: str
    added: dict[str, Json]
    part: ContentPart | None
    done: dict[str, Json]


def _items(request: Request, turn: Turn) -> Iterator[OutputItem]:
    name = request_mark(request)
    blocked = turn.block_reason is not None
    thoughts, texts = pieces(turn.thoughts), pieces(turn.text)
    end = "incomplete" if turn.finish in REASONS else "completed"
    at: dict[str, Json] = {"content_index": 0}
    if (thoughts or turn.signature) and not blocked:
        yield _reasoning(request, turn, f"rs_{name}")
    if texts and not blocked:
        inside: dict[str, Json] = {"type": "output_text", "annotations": [], "logprobs": []}
        part = ContentPart(tuple(texts), "text", inside, "content_part", "output_text", at)
        yield _message(f"msg_{name}", part, end)
    elif blocked and turn.message is not None:
        refusal = (turn.message,)
        part = ContentPart(refusal, "refusal", {"type": "refusal"}, "content_part", "refusal", at)
        yield _message(f"msg_{name}", part, "completed")
    for index, call in enumerate(() if blocked else turn.calls):
        yield _call_item(
            request, call, call_id(request, index, call, "call"), f"{name}_{index}", end
        )


def _call_item(request: Request, call: Call, at: str, name: str, end: str) -> OutputItem:
    """A call in the form in which the request declared its tool: a function with JSON, one whose
    input is plain text (``input`` of the call), or one in a namespace (``mcp__notes__keep``)."""
    kind, named = declared(request.body, call.name)
    if kind == "custom_tool_call":
        id, key, text = f"ctc_{name}", "input", "custom_tool_call_input"
        args = str(call.args.get("input", ""))
    else:
        id, key, text = f"fc_{name}", "arguments", "function_call_arguments"
        args = msgspec.json.encode(call.args).decode()
    half = len(args) // 2
    made: dict[str, Json] = {"id": id, "type": kind, "call_id": at, **named}
    return OutputItem(
        id,
        {**made, "status": "in_progress", key: ""},
        ContentPart((args[:half], args[half:]), key, {}, "", text, {}),
        {**made, "status": end, key: args},
    )


def _reasoning(request: Request, turn: Turn, id: str) -> OutputItem:
    item: dict[str, Json] = {"id": id, "type": "reasoning"}
    if SEALED in items(request.body.get("include")):
        item["encrypted_content"] = signature(turn)
    thoughts = tuple(text for text in pieces(turn.thoughts) if text)
    part = None
    if thoughts:
        inside: dict[str, Json] = {"type": "summary_text"}
        within, text = "reasoning_summary_part", "reasoning_summary_text"
        part = ContentPart(thoughts, "text", inside, within, text, {"summary_index": 0})
    summary: list[Json] = [] if part is None else [part.complete]
    return OutputItem(id, {**item, "summary": []}, part, {**item, "summary": summary})


def _message(id: str, part: ContentPart, end: str) -> OutputItem:
    item: dict[str, Json] = {"id": id, "type": "message", "role": "assistant"}
    return OutputItem(
        id,
        {**item, "status": "in_progress", "content": []},
        part,
        {**item, "status": end, "content": [part.complete]},
    )


def _stream(request: Request, turn: Turn) -> list[bytes]:
    """One piece per delta, with the events before it. All events are numbered."""
    sent: list[bytes] = []
    waiting: list[dict[str, Json]] = []
    for number, (ends_piece, event) in enumerate(_events(request, turn)):
        waiting.append({**event, "sequence_number": number})
        if ends_piece:
            sent.append(sse(waiting))
            waiting = []
    return [*sent, sse(waiting)]


def _events(request: Request, turn: Turn) -> Iterator[tuple[bool, dict[str, Json]]]:
    """Each event, and whether a piece ends after it."""
    started = _response(request, "in_progress", [])
    has_parts = any(item.part is not None for item in _items(request, turn))
    yield False, {"type": "response.created", "response": started}
    yield not has_parts, {"type": "response.in_progress", "response": started}
    done: list[Json] = []
    for index, item in enumerate(_items(request, turn)):
        at: dict[str, Json] = {"output_index": index}
        yield False, {"type": "response.output_item.added", **at, "item": item.added}
        if item.part is not None:
            yield from _part_events(item.part, {"item_id": item.id, **at})
        yield False, {"type": "response.output_item.done", **at, "item": item.done}
        done.append(item.done)
    if turn.late:
        # Nested, as the service sends it. The API reference has the fields beside the type.
        yield False, {"type": "error", "error": error(turn)}
    elif turn.finish:
        ended = _final_response(request, turn, done)
        yield False, {"type": f"response.{ended['status']}", "response": ended}


def _part_events(part: ContentPart, at: dict[str, Json]) -> Iterator[tuple[bool, dict[str, Json]]]:
    at = {**at, **part.index}
    extra: dict[str, Json] = {"logprobs": []} if part.text == "output_text" else {}
    if part.inside:
        empty: dict[str, Json] = {**part.inside, part.key: ""}
        yield False, {"type": f"response.{part.within}.added", **at, "part": empty}
    for text in part.texts:
        yield True, {"type": f"response.{part.text}.delta", **at, **extra, "delta": text}
    complete: dict[str, Json] = {part.key: "".join(part.texts)}
    yield False, {"type": f"response.{part.text}.done", **at, **extra, **complete}
    if part.inside:
        yield False, {"type": f"response.{part.within}.done", **at, "part": part.complete}


def _final_response(request: Request, turn: Turn, output: list[Json]) -> dict[str, Json]:
    """The final response. There is none if the script has no finish reason."""
    status, more = "completed", dict[str, Json]()
    filtered = turn.block_reason is not None and turn.message is None
    if turn.block_reason is not None and not filtered:
        pass
    elif not turn.finish:
        status = "in_progress"
    elif turn.finish == "FAILED":
        status, failed = "failed", error(turn)
        more["error"] = {"code": turn.error_status or "server_error", "message": failed["message"]}
    elif filtered or turn.finish != "STOP":
        status = "incomplete"
        reason = REASONS.get(turn.finish, turn.finish.lower())
        more["incomplete_details"] = {"reason": "content_filter" if filtered else reason}
    if turn.usage is not False:
        more["usage"] = _usage(request, turn)
    return {**_response(request, status, output), **more}


def _response(request: Request, status: str, output: list[Json]) -> dict[str, Json]:
    given = {name: request.body.get(name, usual) for name, usual in ECHOED.items()}
    return {
        "id": f"resp_{request_mark(request)}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": output,
        "usage": None,
        **given,
    }


def _usage(request: Request, turn: Turn) -> dict[str, Json]:
    """OpenAI counts reasoning as part of the output, and the cache as part of the input."""
    given = token_counts(request, turn)
    read = given.get("input", 0) + given.get("tool", 0)
    thoughts = given.get("thoughts", 0)
    written = given.get("output", 0) + thoughts
    cache: dict[str, Json] = {
        "cached_tokens": given.get("cached", 0),
        "cache_write_tokens": given.get("written", 0),
    }
    return {
        "input_tokens": read,
        "input_tokens_details": cache,
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thoughts},
        "total_tokens": given.get("total", read + written),
    }


def system(body: dict[str, Json]) -> str:
    found = list(texts(body.get("instructions")))
    for item in tables(body.get("input")):
        if item.get("role") in INSTRUCTIONS:
            found.extend(texts(item.get("content")))
    return "\n".join(found)


def history(sent: Json) -> list[Message]:
    """One answer of the model is several items of the request; here it is one message."""
    if isinstance(sent, str):
        return [Message("user", texts=(sent,))]
    entries: list[Message] = []
    for message in _input_items(sent):
        if message.role == "model" and entries and entries[-1].role == "model":
            entries[-1] = joined("model", (entries[-1], message))
        else:
            entries.append(message)
    return entries


def tools(declarations: Json) -> Iterator[str]:
    """The names of functions and of tools whose input is plain text, with their namespace as a
    prefix. Of the vendor's own tools, which have no name, only the tool search."""
    for tool in tables(declarations):
        match tool:
            case {"type": "namespace", "name": str(space)}:
                yield from (f"{space}__{name}" for name in tools(tool.get("tools")))
            case {"name": str(name)} | {"type": "tool_search" as name}:
                yield name
            case _:
                pass


def declared(body: dict[str, Json], name: str) -> tuple[str, dict[str, Json]]:
    """The form of a call of this tool: the type of its item, and the fields that name it."""
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
    """The tools of the request, and those that Codex puts into its input."""
    for holder in (body, *tables(body.get("input"))):
        for tool in tables(holder.get("tools")):
            yield tool
            if tool.get("name") == "functions":
                yield from tables(tool.get("tools"))


def _input_items(sent: Json) -> Iterator[Message]:
    """A result has only the id of its call, so the name is found in earlier items."""
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
                thoughts = texts(item.get("summary")) + texts(item.get("content"))
                sealed = string(item.get("encrypted_content"))
                signatures = () if sealed is None else (decode_signature(sealed),)
                yield Message("model", thoughts=thoughts, signatures=signatures)
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
