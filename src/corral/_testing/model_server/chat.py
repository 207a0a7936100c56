"""OpenAI's chat completions, which most agents and model hosts support.

Reasoning is sent as ``reasoning_content``, as most hosts do.
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
    model_list,
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
    result,
    string,
    tables,
    texts,
)
from corral._testing.model_server.script import Turn, pieces
from corral._testing.model_server.wire import (
    build_response,
    call_id,
    request_mark,
    token_counts,
)
from corral.values import Json, as_object

__all__ = ["credential", "env", "receive", "refuse", "refuse_key", "reply", "unscripted"]

PATH = re.compile(r"/(?:.*/)?chat/completions/?")
FINISHES = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
"""Finish reason of a script → of this wire. Any other is sent in lower case."""
HALF = b'data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","choices":[{"del\n\n'
DONE = b"data: [DONE]\n\n"
INSTRUCTIONS = ("system", "developer")
"""Roles of system prompts, which are not part of the history."""


def receive(incoming: Incoming, lane: str) -> Request | ServerResponse | None:
    if (models := model_list(incoming)) is not None:
        return models
    sent = request_body(incoming, PATH, "You must provide a model parameter.")
    if not isinstance(sent, dict):
        return sent
    return Request(
        lane=lane,
        method="chat.completions",
        model=str(sent["model"]),
        path=incoming.target,
        headers=incoming.headers,
        body=sent,
        system=system(sent.get("messages")),
        history=tuple(history(sent.get("messages"))),
        tools=tuple(tools(sent.get("tools"))),
    )


def reply(request: Request, turn: Turn) -> ServerResponse:
    mark = request_mark(request)
    streamed = request.body.get("stream") is True
    return build_response(
        turn,
        failure(turn, mark),
        (lambda: _stream(request, turn)) if streamed else None,
        lambda: _complete_response(request, turn),
        HALF,
        head(mark),
    )


def _stream(request: Request, turn: Turn) -> list[bytes]:
    """One piece per delta, and the end."""
    sent = [_event(_chunk(request, delta)) for delta in _deltas(request, turn)]
    if turn.late:
        return [*sent, _event({"error": error(turn)})]
    end = [_event(_chunk(request, {}, finish))] if (finish := _finish(turn)) else []
    match request.body.get("stream_options"):
        case {"include_usage": True} if turn.usage is not False:
            counted: dict[str, Json] = {
                **_chunk(request, {}),
                "choices": [],
                "usage": _usage(request, turn),
            }
            end.append(_event(counted))
        case _:
            pass
    return [*sent, b"".join([*end, DONE])]


def _deltas(request: Request, turn: Turn) -> Iterator[dict[str, Json]]:
    """Thoughts, text, then each call: first its name, then its arguments in pieces."""
    deltas: list[dict[str, Json]] = []
    if turn.block_reason is None:
        deltas.extend({"reasoning_content": thought} for thought in pieces(turn.thoughts))
        deltas.extend({"content": text} for text in pieces(turn.text))
        for index, call in enumerate(turn.calls):
            made = _call(request, index, call)
            args = _arguments(call)
            half = len(args) // 2
            opened: Json = {
                "index": index,
                **made,
                "function": {"name": call.name, "arguments": ""},
            }
            deltas.append({"tool_calls": [opened]})
            for part in (args[:half], args[half:]):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    elif turn.message is not None:
        deltas.append({"refusal": turn.message})
    if not deltas:
        deltas.append({"content": ""})
    deltas[0] = {"role": "assistant", **deltas[0]}
    yield from deltas


def _chunk(request: Request, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
    choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_head(request), "object": "chat.completion.chunk", "choices": [choice]}


def _complete_response(request: Request, turn: Turn) -> dict[str, Json]:
    blocked = turn.block_reason is not None
    text = "" if blocked else "".join(pieces(turn.text))
    message: dict[str, Json] = {"role": "assistant", "content": text or None, "refusal": None}
    if blocked:
        message["refusal"] = turn.message
    elif turn.thoughts:
        message["reasoning_content"] = "".join(pieces(turn.thoughts))
    if turn.calls and not blocked:
        message["tool_calls"] = [
            {
                **_call(request, index, call),
                "function": {"name": call.name, "arguments": _arguments(call)},
            }
            for index, call in enumerate(turn.calls)
        ]
    choice: Json = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish(turn),
    }
    response = _head(request)
    response |= {"object": "chat.completion", "choices": [choice]}
    if turn.usage is not False:
        response["usage"] = _usage(request, turn)
    return response


def _head(request: Request) -> dict[str, Json]:
    return {"id": "chatcmpl-scripted", "created": CREATED, "model": request.model}


def _call(request: Request, index: int, call: Call) -> dict[str, Json]:
    return {"id": call_id(request, index, call, "call"), "type": "function"}


def _arguments(call: Call) -> str:
    return msgspec.json.encode(call.args).decode()


def _finish(turn: Turn) -> str | None:
    if turn.block_reason is not None:
        return "content_filter"
    if turn.finish == "STOP" and turn.calls:
        return "tool_calls"
    return FINISHES.get(turn.finish, turn.finish.lower()) if turn.finish else None


def _usage(request: Request, turn: Turn) -> dict[str, Json]:
    """OpenAI counts reasoning as part of the completion, and the cache as part of the prompt."""
    given = token_counts(request, turn)
    prompt = given.get("input", 0) + given.get("tool", 0)
    thoughts = given.get("thoughts", 0)
    completion = given.get("output", 0) + thoughts
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": given.get("total", prompt + completion),
        "prompt_tokens_details": {"cached_tokens": given.get("cached", 0)},
        "completion_tokens_details": {"reasoning_tokens": thoughts},
    }


def _event(chunk: dict[str, Json]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def system(messages: Json) -> str:
    entries = [entry for entry in tables(messages) if entry.get("role") in INSTRUCTIONS]
    return "\n".join(text for entry in entries for text in texts(entry.get("content")))


def history(messages: Json) -> Iterator[Message]:
    """A result has only the id of its call, so the name is found in earlier messages."""
    called: dict[str, str] = {}
    for entry in tables(messages):
        match entry.get("role"):
            case role if role in INSTRUCTIONS:
                pass
            case "assistant":
                calls = tuple(
                    Call(
                        string(as_object(made.get("function")).get("name")) or "",
                        arguments(as_object(made.get("function")).get("arguments")),
                        string(made.get("id")),
                    )
                    for made in tables(entry.get("tool_calls"))
                )
                called.update({call.id: call.name for call in calls if call.id is not None})
                thoughts = texts(entry.get("reasoning_content") or entry.get("reasoning"))
                content = texts(entry.get("content"))
                yield Message("model", texts=content, thoughts=thoughts, calls=calls)
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
