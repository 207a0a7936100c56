"""OpenAI's chat completions, the wire that most agents and model hosts share.

Its functions are those of ``server.Wire``, described in ``gemini``. Reasoning is
sent as ``reasoning_content``, which the hosts that show any agree on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from corral.events import Json
from corral.testing.chat_request import history, items, system, tools
from corral.testing.http import Answer, Incoming
from corral.testing.request import Request
from corral.testing.script import Call, Turn, pieces

COMPLETIONS = re.compile(r"/+(?:.*/)?chat/completions/?")
LIST = re.compile(r"/+(?:v1/+)?models(?:/([^/:]+))?/?")
MODELS = ("gpt-5.5", "gpt-5.5-mini")
"""Listed when asked for; any other name is served just as well."""
CREATED = 1_700_000_000
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Of errors; any other below 500 is the request's fault, the rest the server's."""
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
FINISHES = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
"""The script's words; any other is sent in lower case."""
JSON = (("Content-Type", "application/json"),)
EVENTS = (("Content-Type", "text/event-stream; charset=utf-8"),)
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body></body></html>\n"
HALF = b'data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","choices":[{"del\n\n'
DONE = b"data: [DONE]\n\n"


def credential(incoming: Incoming) -> str | None:
    """The key: a bearer's, or as Azure takes it."""
    return _bearer(incoming) or incoming.headers.get("api-key") or None


def _bearer(incoming: Incoming) -> str | None:
    scheme, _, token = incoming.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def receive(incoming: Incoming, lane: str) -> Request | Answer | None:
    listed = LIST.fullmatch(incoming.path)
    if listed is not None and incoming.verb == "GET" and _bearer(incoming) is not None:
        models: list[Json] = [_model(name) for name in MODELS]
        whole: Json = _model(listed[1]) if listed[1] else {"object": "list", "data": models}
        return Answer(headers=JSON, pieces=[_json(whole)])
    if COMPLETIONS.fullmatch(incoming.path) is None:
        return None
    if incoming.verb != "POST":
        return refuse(405, f"Not allowed: {incoming.verb} {incoming.path}")
    try:
        body: Json = msgspec.json.decode(incoming.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return refuse(400, f"We could not parse the JSON body of your request. {error}")
    if not isinstance(body, dict):
        return refuse(400, "The JSON body of your request is not an object.")
    model, messages = body.get("model"), items(body.get("messages"))
    if not isinstance(model, str) or not model:
        return refuse(400, "You must provide a model parameter.")
    return Request(
        lane=lane,
        method="chat.completions",
        model=model,
        path=incoming.target,
        headers=incoming.headers,
        body=body,
        system=system(messages),
        history=tuple(history(messages)),
        tools=tuple(tools(items(body.get("tools")))),
    )


def unscripted(request: Request) -> Turn:
    """No client is known to call beside its conversation here."""
    return Turn(text="OK.")


def reply(request: Request, turn: Turn) -> Answer:
    streamed = request.body.get("stream") is True
    if turn.status is not None:
        answer = _failure(turn)
    elif turn.malformed is not None:
        answer = _malformed(request, turn, streamed)
    elif streamed:
        sent = [*_sse(_chunks(request, turn)), DONE]
        answer = Answer(headers=EVENTS, streamed=True, pieces=sent)
    else:
        whole = _json(_whole(request, turn))
        half = len(whole) // 2  # so that there is a middle to stop in
        answer = Answer(headers=JSON, pieces=[whole[:half], whole[half:]])
    return msgspec.structs.replace(
        answer,
        delay=turn.delay,
        gap=turn.chunk_delay,
        stall=1 if turn.hang == "after" else 0 if turn.hang else None,
        cut=turn.cut,
        cut_bytes=turn.cut_bytes,
    )


def refuse(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    code: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Answer:
    usual = "server_error" if status >= 500 else "invalid_request_error"
    error: Json = {
        "message": message,
        "type": kind or TYPES.get(status, usual),
        "param": None,
        "code": code or CODES.get(status),
    }
    return Answer(status=status, headers=JSON + headers, pieces=[_json({"error": error})])


def refuse_key(key: str | None) -> Answer:
    if key is None:
        return refuse(
            401,
            "You didn't provide an API key. It goes into an Authorization header as a bearer"
            " (any will do, unless the scripted server was given one).",
        )
    return refuse(401, "Incorrect API key provided.")


def _failure(turn: Turn) -> Answer:
    status = turn.status or 500
    headers: tuple[tuple[str, str], ...] = ()
    if turn.retry_after is not None:
        headers = (("Retry-After", str(math.ceil(turn.retry_after))),)
    spent = "insufficient_quota" if turn.quota_id is not None else None
    message = turn.message or f"Error {status} (scripted)."
    code = turn.error_status or spent
    return refuse(status, message, kind=spent, code=code, headers=headers)


def _malformed(request: Request, turn: Turn, streamed: bool) -> Answer:
    raw = turn.malformed
    if raw == "html":
        return Answer(headers=(("Content-Type", "text/html"),), pieces=[HTML])
    good: list[bytes] = []
    if turn.text and streamed:
        good = [_event(_chunk(request, delta)) for delta in _deltas(request, turn)]
    half = HALF if streamed else HALF.removeprefix(b"data: ")
    bad = half if raw == "json" else raw.encode() if isinstance(raw, str) else raw or b""
    headers = EVENTS if streamed else JSON
    return Answer(headers=headers, streamed=True, pieces=[*good, bad])


def _sse(chunks: Iterator[dict[str, Json]]) -> list[bytes]:
    return [_event(chunk) for chunk in chunks]


def _chunks(request: Request, turn: Turn) -> Iterator[dict[str, Json]]:
    for delta in _deltas(request, turn):
        yield _chunk(request, delta)
    if finish := _finish(turn):
        yield _chunk(request, {}, finish)
    match request.body.get("stream_options"):
        case {"include_usage": True} if turn.usage is not False:
            counted = _chunk(request, {})
            yield {**counted, "choices": [], "usage": _usage(request, turn)}
        case _:
            pass


def _deltas(request: Request, turn: Turn) -> Iterator[dict[str, Json]]:
    """Thoughts, text, then each call: its name first, its arguments in pieces after it."""
    said: list[dict[str, Json]] = []
    if turn.block_reason is None:
        said.extend({"reasoning_content": thought} for thought in pieces(turn.thoughts))
        said.extend({"content": text} for text in pieces(turn.text))
        for index, call in enumerate(turn.calls):
            made = _call(request, index, call)
            args = _arguments(call)
            half = len(args) // 2
            opened: Json = {
                "index": index,
                **made,
                "function": {"name": call.name, "arguments": ""},
            }
            said.append({"tool_calls": [opened]})
            for part in (args[:half], args[half:]):
                said.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    elif turn.message is not None:
        said.append({"refusal": turn.message})
    if not said:
        said.append({"content": ""})
    said[0] = {"role": "assistant", **said[0]}
    yield from said


def _chunk(request: Request, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
    choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_head(request), "object": "chat.completion.chunk", "choices": [choice]}


def _whole(request: Request, turn: Turn) -> dict[str, Json]:
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
    whole = _head(request)
    whole |= {"object": "chat.completion", "choices": [choice]}
    if turn.usage is not False:
        whole["usage"] = _usage(request, turn)
    return whole


def _head(request: Request) -> dict[str, Json]:
    return {"id": "chatcmpl-scripted", "created": CREATED, "model": request.model}


def _call(request: Request, index: int, call: Call) -> dict[str, Json]:
    """No call is without an id on this wire; one that the script leaves out is made up, unlike
    any of this conversation."""
    return {"id": call.id or f"call_{len(request.tool_calls) + index}", "type": "function"}


def _arguments(call: Call) -> str:
    return _json(dict(call.args)).decode()


def _finish(turn: Turn) -> str | None:
    if turn.block_reason is not None:
        return "content_filter"
    if turn.finish == "STOP" and turn.calls:
        return "tool_calls"
    return FINISHES.get(turn.finish, turn.finish.lower()) if turn.finish else None


def _usage(request: Request, turn: Turn) -> dict[str, Json]:
    """OpenAI counts reasoning among the completion, and the cache among the prompt."""
    if isinstance(turn.usage, bool) or turn.usage is None:
        read = len(request.system) + sum(map(len, request.texts))
        said = sum(map(len, pieces(turn.text))) + sum(len(str(c.args)) for c in turn.calls)
        thought = sum(map(len, pieces(turn.thoughts)))
        given = {"input": -(-read // 4), "output": -(-said // 4), "thoughts": -(-thought // 4)}
    else:
        given = dict(turn.usage)
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


def _model(name: str) -> dict[str, Json]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "script"}


def _event(chunk: dict[str, Json]) -> bytes:
    return b"data: " + _json(chunk) + b"\n\n"


def _json(value: Json) -> bytes:
    return msgspec.json.encode(value)
