"""What the two wires of OpenAI share: keys, limits, errors, the list of models."""

from __future__ import annotations

import re

import msgspec

from corral._testing.model_server.http import Incoming, ServerResponse
from corral._testing.model_server.request import Request
from corral._testing.model_server.script import Turn
from corral._testing.model_server.wire import JSON, Headers, bearer, body, retry_after
from corral.values import Json

LIST = re.compile(r"/+(?:v1/+)?models(?:/([^/:]+))?/?")
MODELS = ("gpt-5.5", "gpt-5.5-mini")
"""The models in the list. Any other name works too."""
CREATED = 1_700_000_000
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Status → the type of the error. Any other below 500 is an invalid request."""
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def credential(incoming: Incoming) -> str | None:
    """The API key: from the bearer token, or from the header that Azure uses."""
    return bearer(incoming) or incoming.headers.get("api-key") or None


def env(url: str, key: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}


def model_list(incoming: Incoming) -> ServerResponse | None:
    """The list of models, if the call has a bearer token. Google has the same path."""
    found = LIST.fullmatch(incoming.path)
    if found is None or incoming.verb != "GET" or bearer(incoming) is None:
        return None
    models: list[Json] = [_model(name) for name in MODELS]
    found_models: Json = _model(found[1]) if found[1] else {"object": "list", "data": models}
    return ServerResponse(headers=JSON, pieces=[msgspec.json.encode(found_models)])


def request_body(
    incoming: Incoming, path: re.Pattern[str], missing: str
) -> dict[str, Json] | ServerResponse | None:
    """The body of a request to this path. A refusal if it is invalid, with the message ``missing``
    if it names no model. None for any other path."""
    if path.fullmatch(incoming.path) is None:
        return None
    if incoming.verb != "POST":
        return refuse(405, f"Not allowed: {incoming.verb} {incoming.path}")
    try:
        sent = body(incoming)
    except ValueError as wrong:
        return refuse(400, f"We could not parse the JSON body of your request. {wrong}")
    return sent if sent.get("model") and isinstance(sent["model"], str) else refuse(400, missing)


def unscripted(request: Request) -> Turn:
    """No known client makes calls outside the conversation on this wire."""
    return Turn(text="OK.")


def head(mark: str, *, spent: bool = False, reset: float = 0.006) -> Headers:
    """Headers of every response: its id and the rate limits."""
    left = 0 if spent else 1
    return (
        ("x-request-id", f"req_{mark}"),
        ("x-ratelimit-limit-requests", "5000"),
        ("x-ratelimit-remaining-requests", str(4999 * left)),
        ("x-ratelimit-reset-requests", _span(reset)),
        ("x-ratelimit-limit-tokens", "800000"),
        ("x-ratelimit-remaining-tokens", str(799000 * left)),
        ("x-ratelimit-reset-tokens", _span(reset)),
    )


def refuse(status: int, message: str) -> ServerResponse:
    return _refusal(status, _error(status, message), head("refused"))


def refuse_key(key: str | None) -> ServerResponse:
    if key is None:
        return refuse(
            401,
            "You didn't provide an API key. It goes into an Authorization header as a bearer"
            " (any key works, unless the scripted server was given one).",
        )
    return refuse(401, "Incorrect API key provided.")


def failure(turn: Turn, mark: str) -> ServerResponse:
    status = turn.status or 500
    headers = head(mark, spent=status == 429, reset=turn.retry_after or 0.006)
    return _refusal(status, error(turn), headers + retry_after(turn))


def error(turn: Turn) -> dict[str, Json]:
    """The error of the turn. An exhausted quota has its own type."""
    spent = "insufficient_quota" if turn.quota_id is not None else None
    status = turn.status or 500
    message = turn.message or f"Error {status} (scripted)."
    return _error(status, message, kind=spent, code=turn.error_status or spent)


def _error(
    status: int, message: str, *, kind: str | None = None, code: str | None = None
) -> dict[str, Json]:
    usual = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "message": message,
        "type": kind or TYPES.get(status, usual),
        "param": None,
        "code": code or CODES.get(status),
    }


def _refusal(status: int, error: dict[str, Json], headers: Headers) -> ServerResponse:
    data = msgspec.json.encode({"error": error})
    return ServerResponse(status=status, headers=JSON + headers, pieces=[data])


def _span(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


def _model(name: str) -> dict[str, Json]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "script"}
