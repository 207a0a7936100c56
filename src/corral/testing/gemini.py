"""The Gemini API, as the Gemini CLI and the google-genai SDK call it.

A wire turns bytes into a ``Request`` and a ``Turn`` into bytes, and does no
I/O. Its functions are those of ``server.Wire``:

- ``receive``: an incoming call → a ``Request``, or an ``Answer`` that needs no
  turn, or ``None`` for a path that is another wire's;
- ``credential``: the key that came with it;
- ``unscripted``: the turn for a call beside the conversation;
- ``reply``: a turn → what to send; ``refuse``: an error, in the vendor's form.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Sequence

import msgspec

from corral.events import Json
from corral.testing.gemini_request import get, items, message, system, tools
from corral.testing.http import Answer, Incoming
from corral.testing.request import Request
from corral.testing.script import Turn, pieces

PATH = re.compile(r"/+v1(?:alpha|beta|beta1)?/(?:[^:]*/)?models(?:/([^/:]+)(?::(\w+))?)?/?")
"""Gemini's own paths and Vertex's, which put ``projects/…`` or ``publishers/google`` before."""
METHODS = ("streamGenerateContent", "generateContent", "countTokens")
MODELS = ("gemini-3.1-pro-preview", "gemini-3.8-flash", "gemini-2.5-pro", "gemini-2.5-flash")
"""Listed when asked for; any other name is served just as well."""
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
JSON = (("Content-Type", "application/json; charset=UTF-8"),)
RPC = "type.googleapis.com/google.rpc."
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body></body></html>\n"
HALF = b'data: {"candidates": [{"content": {"role": "model", "parts": [{"te\r\n\r\n'
SIGNATURE = "scripted-signature"


def credential(incoming: Incoming) -> str | None:
    """The key, wherever Google takes one."""
    scheme, _, token = incoming.headers.get("authorization", "").partition(" ")
    return (
        incoming.headers.get("x-goog-api-key")
        or incoming.query.get("key")
        or (token.strip() if scheme.lower() == "bearer" else None)
        or None
    )


def receive(incoming: Incoming, lane: str) -> Request | Answer | None:
    found = PATH.fullmatch(incoming.path)
    if found is None:
        return None
    model, method = found[1], found[2]
    if incoming.verb == "GET" and method is None:
        vertex = "/publishers/" in incoming.path
        listed: dict[str, Json] = {
            "publisherModels" if vertex else "models": [_model(name) for name in MODELS]
        }
        return Answer(headers=JSON, pieces=[_json(_model(model) if model else listed)])
    if incoming.verb != "POST" or method not in METHODS:
        return refuse(404, f"Nothing here: {incoming.verb} {incoming.path}")
    try:
        body: Json = msgspec.json.decode(incoming.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return refuse(400, f"Invalid JSON payload received. {error}")
    if not isinstance(body, dict):
        return refuse(400, "Invalid JSON payload received. The root is not an object.")
    asked = get(body, "generateContentRequest")
    content = asked if isinstance(asked, dict) else body
    # The Gemini CLI streams its turns; what it asks in one piece is the model router, the
    # summary of a session or a web tool, and must not use up the turns of the script.
    own_account = "GeminiCLI" in incoming.headers.get("user-agent", "")
    return Request(
        lane=lane,
        method=method,
        model=model,
        path=incoming.target,
        headers=incoming.headers,
        body=body,
        system=system(get(content, "systemInstruction")),
        history=tuple(message(entry) for entry in items(get(content, "contents"))),
        tools=tuple(tools(items(get(content, "tools")))),
        aside=method == "countTokens" or (method == "generateContent" and own_account),
    )


def unscripted(request: Request) -> Turn:
    """The plainest answer that fits: the first choice of the schema asked for, or a word."""
    config = get(request.body, "generationConfig")
    if isinstance(config, dict):
        schema = get(config, "responseJsonSchema") or get(config, "responseSchema")
        if schema or get(config, "responseMimeType") == "application/json":
            return Turn(text=_json(_plainest(schema)).decode(), usage={"input": 3, "output": 2})
    return Turn(text="OK.")


def reply(request: Request, turn: Turn) -> Answer:
    sse = _asks_sse(request)
    streamed = request.method == "streamGenerateContent"
    if turn.status is not None:
        answer = _failure(turn, listed=streamed and not sse)
    elif turn.malformed is not None:
        answer = _malformed(request, turn, sse)
    elif request.method == "countTokens":
        counted = _usage(request, turn)["promptTokenCount"]
        answer = Answer(headers=JSON, pieces=[_json({"totalTokens": counted})])
    elif streamed:
        answer = _stream(list(_chunks(request, turn)), sse)
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
    error_status: str | None = None,
    details: Sequence[Json] = (),
    headers: tuple[tuple[str, str], ...] = (),
    listed: bool = False,
) -> Answer:
    error: dict[str, Json] = {
        "code": status,
        "message": message,
        "status": error_status or STATUSES.get(status, "UNKNOWN"),
    }
    if details:
        error["details"] = list(details)
    whole: Json = {"error": error}
    return Answer(
        status=status, headers=JSON + headers, pieces=[_json([whole] if listed else whole)]
    )


def refuse_key(key: str | None) -> Answer:
    """No key, or not the one expected."""
    if key is None:
        return refuse(
            401,
            "Request is missing required authentication credential. Expected an API key in "
            "x-goog-api-key (any will do, unless the scripted server was given one).",
        )
    info: Json = {"@type": RPC + "ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis"}
    return refuse(400, "API key not valid. Please pass a valid API key.", details=[info])


def _failure(turn: Turn, *, listed: bool) -> Answer:
    status = turn.status or 500
    details: list[Json] = []
    headers: tuple[tuple[str, str], ...] = ()
    if turn.quota_id is not None:
        metric = "generativelanguage.googleapis.com/generate_content_requests"
        violation: Json = {"quotaMetric": metric, "quotaId": turn.quota_id}
        details.append({"@type": RPC + "QuotaFailure", "violations": [violation]})
    if turn.retry_after is not None:
        details.append({"@type": RPC + "RetryInfo", "retryDelay": f"{turn.retry_after:.9g}s"})
        headers = (("Retry-After", str(math.ceil(turn.retry_after))),)
    name = turn.error_status or STATUSES.get(status, "UNKNOWN")
    message = turn.message or f"{name.replace('_', ' ').capitalize()} (scripted)."
    return refuse(
        status, message, error_status=name, details=details, headers=headers, listed=listed
    )


def _malformed(request: Request, turn: Turn, sse: bool) -> Answer:
    raw = turn.malformed
    if raw == "html":
        return Answer(headers=(("Content-Type", "text/html"),), pieces=[HTML])
    good: Sequence[bytes] = ()
    if turn.text and request.method == "streamGenerateContent":
        good = _stream(list(_chunks(request, turn))[:-1], sse, ends=False).pieces
    half = HALF if sse else HALF.removeprefix(b"data: ")
    bad = half if raw == "json" else raw.encode() if isinstance(raw, str) else raw or b""
    return msgspec.structs.replace(_stream([], sse), pieces=[*good, bad])


def _stream(chunks: list[dict[str, Json]], sse: bool, *, ends: bool = True) -> Answer:
    if sse:
        event = (("Content-Type", "text/event-stream"),)
        sent = [b"data: " + _json(chunk) + b"\r\n\r\n" for chunk in chunks]
        return Answer(headers=event, streamed=True, pieces=sent)
    sent = [(b",\r\n" if n else b"[") + _json(chunk) for n, chunk in enumerate(chunks)]
    return Answer(headers=JSON, streamed=True, pieces=[*sent, b"]"] if ends else sent)


def _chunks(request: Request, turn: Turn) -> Iterator[dict[str, Json]]:
    """Of a stream: each text by itself, the calls together, the end with the last of them."""
    if turn.block_reason is not None:
        yield _blocked(request, turn)
        return
    groups = [[part] for part in _said(turn, pieces(turn.thoughts), pieces(turn.text))]
    if called := _called(turn):
        groups.append(called)
    if turn.hang or turn.cut is not None or turn.malformed is not None or not groups:
        groups.append([])  # what came before must not look finished
    for group in groups[:-1]:
        yield {"candidates": [_candidate(group)], "modelVersion": request.model}
    yield _ended(request, turn, _candidate(groups[-1]))


def _whole(request: Request, turn: Turn) -> dict[str, Json]:
    if turn.block_reason is not None:
        return _blocked(request, turn)
    text = "".join(pieces(turn.text))
    parts = _said(turn, pieces(turn.thoughts), [text] if text else [])
    return _ended(request, turn, _candidate([*parts, *_called(turn)]))


def _said(turn: Turn, thoughts: Sequence[str], texts: Sequence[str]) -> list[Json]:
    parts: list[dict[str, Json]] = []
    parts.extend({"text": text, "thought": True} for text in thoughts)
    parts.extend({"text": text} for text in texts)
    signature = _signature(turn)
    if signature and parts and not turn.calls:
        parts[-1]["thoughtSignature"] = signature
    return list(parts)


def _called(turn: Turn) -> list[Json]:
    """The signature is on the first call alone, as Gemini 3 sends it."""
    parts: list[Json] = []
    for n, call in enumerate(turn.calls):
        made: dict[str, Json] = {"name": call.name, "args": dict(call.args)}
        if call.id is not None:
            made["id"] = call.id
        part: dict[str, Json] = {"functionCall": made}
        if n == 0 and (signature := _signature(turn)):
            part["thoughtSignature"] = signature
        parts.append(part)
    return parts


def _signature(turn: Turn) -> str | None:
    signature = turn.signature or (SIGNATURE if turn.thoughts else None)
    return base64.b64encode(signature.encode()).decode() if signature else None


def _candidate(parts: list[Json]) -> dict[str, Json]:
    content: dict[str, Json] = {"role": "model"}
    if parts:
        content["parts"] = parts
    return {"content": content, "index": 0}


def _ended(request: Request, turn: Turn, candidate: dict[str, Json]) -> dict[str, Json]:
    if turn.finish:
        candidate["finishReason"] = turn.finish
        if turn.message is not None:
            candidate["finishMessage"] = turn.message
    end: dict[str, Json] = {"candidates": [candidate], "modelVersion": request.model}
    if turn.usage is not False:
        end["usageMetadata"] = _usage(request, turn)
    return end


def _blocked(request: Request, turn: Turn) -> dict[str, Json]:
    feedback: dict[str, Json] = {"blockReason": turn.block_reason}
    if turn.message is not None:
        feedback["blockReasonMessage"] = turn.message
    return {"promptFeedback": feedback, "modelVersion": request.model}


def _usage(request: Request, turn: Turn) -> dict[str, Json]:
    if isinstance(turn.usage, bool) or turn.usage is None:
        read = len(request.system) + sum(map(len, request.texts))
        said = sum(map(len, pieces(turn.text))) + sum(len(str(c.args)) for c in turn.calls)
        thought = sum(map(len, pieces(turn.thoughts)))
        given = {"input": -(-read // 4), "output": -(-said // 4)}
        if thought:
            given["thoughts"] = -(-thought // 4)
    else:
        given = dict(turn.usage)
    names = {
        "input": "promptTokenCount",
        "output": "candidatesTokenCount",
        "cached": "cachedContentTokenCount",
        "thoughts": "thoughtsTokenCount",
        "tool": "toolUsePromptTokenCount",
    }
    total = sum(given.get(name, 0) for name in ("input", "output", "thoughts", "tool"))
    counts: dict[str, Json] = {to: given[name] for name, to in names.items() if name in given}
    return {"promptTokenCount": 0, **counts, "totalTokenCount": given.get("total", total)}


def _asks_sse(request: Request) -> bool:
    return re.search(r"[?&]alt=sse(?:&|$)", request.path) is not None


def _plainest(schema: Json) -> Json:
    """The least value that a schema allows: first choices, low numbers, empty lists."""
    if not isinstance(schema, dict):
        return {}
    choices = items(schema.get("enum"))
    if choices:
        return choices[0]
    match str(next(iter(items(schema.get("type"))), "object")).lower():
        case "string":
            return "scripted"
        case "integer":
            return schema.get("minimum", 1)  # the router's score begins at 1
        case "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "array":
            return []
        case _:
            properties = schema.get("properties")
            fields = properties if isinstance(properties, dict) else {}
            return {name: _plainest(field) for name, field in fields.items()}


def _model(name: str) -> dict[str, Json]:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": 1048576,
        "outputTokenLimit": 65536,
        "supportedGenerationMethods": list(METHODS),
    }


def _json(value: Json) -> bytes:
    """Escaped where Google does: readers that split at any Unicode line end must not split here."""
    text = msgspec.json.encode(value)
    for mark in ("\u0085", "\u2028", "\u2029"):
        text = text.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
    return text
