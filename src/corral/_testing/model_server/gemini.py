"""The Gemini API, as the Gemini CLI and the google-genai SDK call it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from corral._testing.model_server.http import Incoming, ServerResponse
from corral._testing.model_server.request import (
    Call,
    Message,
    Request,
    ToolResult,
    joined,
    string,
)
from corral._testing.model_server.script import Turn, pieces
from corral._testing.model_server.wire import (
    Headers,
    bearer,
    body,
    decode_signature,
    malformed,
    plain_response,
    retry_after,
    signature,
    token_counts,
    with_faults,
)
from corral.values import Json, as_object

PATH = re.compile(r"/+v1(?:alpha|beta|beta1)?/(?:[^:]*/)?models(?:/([^/:]+)(?::(\w+))?)?/?")
"""The paths of Gemini, and of Vertex, which start with ``projects/…`` or ``publishers/google``."""
METHODS = ("streamGenerateContent", "generateContent", "countTokens")
MODELS = ("gemini-3.1-pro-preview", "gemini-3.8-flash", "gemini-2.5-pro", "gemini-2.5-flash")
"""The models in the list. Any other name works too."""
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
JSON: Headers = (("Content-Type", "application/json; charset=UTF-8"),)
RPC = "type.googleapis.com/google.rpc."
HALF = b'data: {"candidates": [{"content": {"role": "model", "parts": [{"te\r\n\r\n'
CONTEXT = "<session_context>"
"""The start of the text that the Gemini CLI puts before the first prompt, in the same message."""


def credential(incoming: Incoming) -> str | None:
    """The API key, from any place where Google accepts it."""
    return (
        incoming.headers.get("x-goog-api-key")
        or incoming.query.get("key")
        or bearer(incoming)
        or None
    )


def env(url: str, key: str) -> dict[str, str]:
    return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": key}


def receive(incoming: Incoming, lane: str) -> Request | ServerResponse | None:
    found = PATH.fullmatch(incoming.path)
    if found is None:
        return None
    model, method = found[1], found[2]
    if incoming.verb == "GET" and method is None:
        vertex = "/publishers/" in incoming.path
        listed: dict[str, Json] = {
            "publisherModels" if vertex else "models": [_model(name) for name in MODELS]
        }
        return ServerResponse(headers=JSON, pieces=[_json(_model(model) if model else listed)])
    if incoming.verb != "POST" or method not in METHODS:
        return refuse(404, f"Nothing here: {incoming.verb} {incoming.path}")
    try:
        sent = body(incoming)
    except ValueError as wrong:
        return refuse(400, f"Invalid JSON payload received. {wrong}")
    asked = get(sent, "generateContentRequest")
    content = asked if isinstance(asked, dict) else sent
    # The Gemini CLI streams its turns. Its other requests are for the model router, the summary
    # of a session or a web tool, and must not use the turns of the script.
    own_account = "GeminiCLI" in incoming.headers.get("user-agent", "")
    return Request(
        lane=lane,
        method=method,
        model=model,
        path=incoming.target,
        headers=incoming.headers,
        body=sent,
        system=system(get(content, "systemInstruction")),
        history=tuple(message(entry) for entry in items(get(content, "contents"))),
        tools=tuple(tools(items(get(content, "tools")))),
        aside=method == "countTokens" or (method == "generateContent" and own_account),
    )


def unscripted(request: Request) -> Turn:
    """The simplest answer that is valid: the first choices of the requested schema, or one word."""
    config = get(request.body, "generationConfig")
    if isinstance(config, dict):
        schema = get(config, "responseJsonSchema") or get(config, "responseSchema")
        if schema or get(config, "responseMimeType") == "application/json":
            return Turn(
                text=_json(_smallest_value(schema)).decode(), usage={"input": 3, "output": 2}
            )
    return Turn(text="OK.")


def reply(request: Request, turn: Turn) -> ServerResponse:
    sse = re.search(r"[?&]alt=sse(?:&|$)", request.path) is not None
    streamed = request.method == "streamGenerateContent"
    if turn.status is not None and not (turn.late and streamed):
        failed = _failure(turn)
        error: Json = [failed] if streamed and not sse else failed
        answer = _refusal(turn.status, error, retry_after(turn))
    elif turn.malformed is not None:
        good: Sequence[bytes] = ()
        if turn.text and streamed:
            good = _stream(list(_chunks(request, turn))[:-1], sse, ends=False).pieces
        half = HALF if sse else HALF.removeprefix(b"data: ")
        answer = malformed(turn, half, _stream([], sse).headers, good)
    elif request.method == "countTokens":
        counted = _usage(request, turn)["promptTokenCount"]
        answer = ServerResponse(headers=JSON, pieces=[_json({"totalTokens": counted})])
    elif streamed:
        answer = _stream(list(_chunks(request, turn)), sse)
    else:
        text = "".join(pieces(turn.text))
        parts = _text_parts(turn, pieces(turn.thoughts), [text] if text else [])
        candidate = _candidate([*parts, *_call_parts(turn)])
        complete = (
            _last_chunk(request, turn, candidate)
            if turn.block_reason is None
            else _blocked_prompt(request, turn)
        )
        answer = plain_response(_json(complete), JSON)
    return with_faults(answer, turn)


def refuse(status: int, message: str) -> ServerResponse:
    return _refusal(status, _error(status, message))


def refuse_key(key: str | None) -> ServerResponse:
    """The error for a missing or wrong key."""
    if key is None:
        return refuse(
            401,
            "Request is missing required authentication credential. Expected an API key in "
            "x-goog-api-key (any key works, unless the scripted server was given one).",
        )
    info: Json = {"@type": RPC + "ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis"}
    invalid = _error(400, "API key not valid. Please pass a valid API key.", details=[info])
    return _refusal(400, invalid)


def _refusal(status: int, error: Json, headers: Headers = ()) -> ServerResponse:
    return ServerResponse(status=status, headers=JSON + headers, pieces=[_json(error)])


def _error(
    status: int, message: str, *, name: str | None = None, details: Sequence[Json] = ()
) -> dict[str, Json]:
    error: dict[str, Json] = {
        "code": status,
        "message": message,
        "status": name or STATUSES.get(status, "UNKNOWN"),
    }
    if details:
        error["details"] = list(details)
    return {"error": error}


def _failure(turn: Turn) -> dict[str, Json]:
    status = turn.status or 500
    details: list[Json] = []
    if turn.quota_id is not None:
        metric = "generativelanguage.googleapis.com/generate_content_requests"
        violation: Json = {"quotaMetric": metric, "quotaId": turn.quota_id}
        details.append({"@type": RPC + "QuotaFailure", "violations": [violation]})
    if turn.retry_after is not None:
        details.append({"@type": RPC + "RetryInfo", "retryDelay": f"{turn.retry_after:.9g}s"})
    name = turn.error_status or STATUSES.get(status, "UNKNOWN")
    message = turn.message or f"{name.replace('_', ' ').capitalize()} (scripted)."
    return _error(status, message, name=name, details=details)


def _stream(chunks: list[dict[str, Json]], sse: bool, *, ends: bool = True) -> ServerResponse:
    if sse:
        event = (("Content-Type", "text/event-stream"),)
        sent = [b"data: " + _json(chunk) + b"\r\n\r\n" for chunk in chunks]
        return ServerResponse(headers=event, streamed=True, pieces=sent)
    sent = [(b",\r\n" if n else b"[") + _json(chunk) for n, chunk in enumerate(chunks)]
    return ServerResponse(headers=JSON, streamed=True, pieces=[*sent, b"]"] if ends else sent)


def _chunks(request: Request, turn: Turn) -> Iterator[dict[str, Json]]:
    """The pieces of a stream: one per text, one with all calls. The last has the finish reason."""
    if turn.block_reason is not None:
        yield _blocked_prompt(request, turn)
        return
    groups = [[part] for part in _text_parts(turn, pieces(turn.thoughts), pieces(turn.text))]
    if called := _call_parts(turn):
        groups.append(called)
    broken = turn.hang or turn.cut is not None or turn.malformed is not None or turn.late
    if broken or not groups:
        groups.append([])  # the pieces before must not look complete
    for group in groups[:-1]:
        yield {"candidates": [_candidate(group)], "modelVersion": request.model}
    yield _failure(turn) if turn.late else _last_chunk(request, turn, _candidate(groups[-1]))


def _text_parts(turn: Turn, thoughts: Sequence[str], texts: Sequence[str]) -> list[Json]:
    parts: list[dict[str, Json]] = []
    parts.extend({"text": text, "thought": True} for text in thoughts)
    parts.extend({"text": text} for text in texts)
    signed = signature(turn)
    if signed and parts and not turn.calls:
        parts[-1]["thoughtSignature"] = signed
    return list(parts)


def _call_parts(turn: Turn) -> list[Json]:
    """Only the first call has the signature, as Gemini 3 sends it."""
    parts: list[Json] = []
    for n, call in enumerate(turn.calls):
        made: dict[str, Json] = {"name": call.name, "args": dict(call.args)}
        if call.id is not None:
            made["id"] = call.id
        part: dict[str, Json] = {"functionCall": made}
        if n == 0 and (signed := signature(turn)):
            part["thoughtSignature"] = signed
        parts.append(part)
    return parts


def _candidate(parts: list[Json]) -> dict[str, Json]:
    content: dict[str, Json] = {"role": "model"}
    if parts:
        content["parts"] = parts
    return {"content": content, "index": 0}


def _last_chunk(request: Request, turn: Turn, candidate: dict[str, Json]) -> dict[str, Json]:
    if turn.finish:
        candidate["finishReason"] = turn.finish
        if turn.message is not None:
            candidate["finishMessage"] = turn.message
    end: dict[str, Json] = {"candidates": [candidate], "modelVersion": request.model}
    if turn.usage is not False:
        end["usageMetadata"] = _usage(request, turn)
    return end


def _blocked_prompt(request: Request, turn: Turn) -> dict[str, Json]:
    feedback: dict[str, Json] = {"blockReason": turn.block_reason}
    if turn.message is not None:
        feedback["blockReasonMessage"] = turn.message
    return {"promptFeedback": feedback, "modelVersion": request.model}


def _usage(request: Request, turn: Turn) -> dict[str, Json]:
    given = token_counts(request, turn)
    names = {
        "input": "promptTokenCount",
        "output": "candidatesTokenCount",
        "cached": "cachedContentTokenCount",
        "thoughts": "thoughtsTokenCount",
        "tool": "toolUsePromptTokenCount",
    }
    total = sum(given.get(name, 0) for name in ("input", "output", "thoughts", "tool"))
    known: dict[str, Json] = {to: given[name] for name, to in names.items() if name in given}
    return {"promptTokenCount": 0, **known, "totalTokenCount": given.get("total", total)}


def _smallest_value(schema: Json) -> Json:
    """The smallest value that a schema allows: first choices, low numbers, empty lists."""
    if not isinstance(schema, dict):
        return {}
    choices = items(schema.get("enum"))
    if choices:
        return choices[0]
    match str(next(iter(items(schema.get("type"))), "object")).lower():
        case "string":
            return "scripted"
        case "integer":
            return schema.get("minimum", 1)  # the score of the model router starts at 1
        case "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case "array":
            return []
        case _:
            properties = schema.get("properties")
            fields = properties if isinstance(properties, dict) else {}
            return {name: _smallest_value(field) for name, field in fields.items()}


def _model(name: str) -> dict[str, Json]:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": 1048576,
        "outputTokenLimit": 65536,
        "supportedGenerationMethods": list(METHODS),
    }


def _json(value: Json) -> bytes:
    """Escape what Google escapes: clients may split lines at any Unicode line end."""
    text = msgspec.json.encode(value)
    for char in ("\u0085", "\u2028", "\u2029"):
        text = text.replace(char.encode(), f"\\u{ord(char):04x}".encode())
    return text


def message(entry: Json) -> Message:
    content = as_object(entry)
    parts = (_part(as_object(part)) for part in items(get(content, "parts")))
    return joined(string(get(content, "role")) or "user", parts)


def _part(part: dict[str, Json]) -> Message:
    found = Message("")
    if isinstance(text := part.get("text"), str):
        kind = "context" if text.startswith(CONTEXT) else "texts"
        kind = "thoughts" if part.get("thought") is True else kind
        found = replace(found, **{kind: (text,)})
    if isinstance(made := get(part, "functionCall"), dict):
        name, args = string(made.get("name")) or "", as_object(made.get("args"))
        found = replace(found, calls=(Call(name, args, string(made.get("id"))),))
    if isinstance(done := get(part, "functionResponse"), dict):
        name = string(done.get("name")) or ""
        returned = ToolResult(name, done.get("response"), string(done.get("id")))
        found = replace(found, results=(returned,))
    if isinstance(signature := get(part, "thoughtSignature"), str):
        found = replace(found, signatures=(decode_signature(signature),))
    return found


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
    """Google accepts both ``systemInstruction`` and ``system_instruction``."""
    if name in table:
        return table[name]
    return table.get(re.sub(r"([A-Z])", lambda m: "_" + m[1].lower(), name))


def items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [] if value is None else [value]
