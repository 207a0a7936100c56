"""Errors in OpenAI's format, with the variants of other chat-completions servers."""

from __future__ import annotations

import re

import msgspec

from corral.errors import ContentRefused, CorralError
from corral.models.errors import ErrorFacts, error_from_failure, vendor_error
from corral.models.spec import Failure, Provider
from corral.values import Json, JsonObject, decode_or_none

LIMITS = {
    "requests_limit": "x-ratelimit-limit-requests",
    "requests_remaining": "x-ratelimit-remaining-requests",
    "requests_reset": "x-ratelimit-reset-requests",
    "tokens_limit": "x-ratelimit-limit-tokens",
    "tokens_remaining": "x-ratelimit-remaining-tokens",
    "tokens_reset": "x-ratelimit-reset-tokens",
}

RESETS = ("x-ratelimit-reset",)
"""Sent by other servers with the same format."""

REFUSED = frozenset(
    {
        "bio_policy",
        "content_filter",
        "content_policy_violation",
        "cyber_policy",
        "image_content_policy_violation",
        "invalid_prompt",  # its message: the prompt was flagged as violating the usage policy
        "misalignment_policy_violation",
        "moderation_blocked",
    }
)

BY_CODE = {
    "context_length_exceeded": "INVALID_ARGUMENT",
    "insufficient_quota": "RESOURCE_EXHAUSTED",
    "invalid_api_key": "UNAUTHENTICATED",
    "model_not_found": "NOT_FOUND",
    "rate_limit_exceeded": "RESOURCE_EXHAUSTED",
}
"""Codes that are more specific than their HTTP status."""

BY_TYPE = {
    "authentication_error": "UNAUTHENTICATED",
    "insufficient_quota": "RESOURCE_EXHAUSTED",
    "invalid_request_error": "INVALID_ARGUMENT",
    "not_found_error": "NOT_FOUND",
    "permission_error": "PERMISSION_DENIED",
    "rate_limit_error": "RESOURCE_EXHAUSTED",
    "tokens": "RESOURCE_EXHAUSTED",
    "requests": "RESOURCE_EXHAUSTED",
}
"""Used only for errors inside a stream, which have no HTTP status."""

_IMAGE = re.compile(r"(invalid|unsupported|empty|failed_to_download)_image|^image_")
_WAIT = re.compile(r"try again in (?:(\d+)m(?!s))?(?:([\d.]+)(ms|s))?", re.IGNORECASE)


_ERROR_CODES = {401: "invalid_api_key", 402: "budget_exceeded", 429: "rate_limit_exceeded"}


def error_body(status: int, message: str) -> JsonObject:
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = _ERROR_CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def failure(failure: Failure) -> CorralError:
    return _error(
        failure.provider, _error_object(decode_or_none(failure.body)), failure.model, failure
    )


def error_in_stream(provider: Provider, error: Json, model: str) -> CorralError:
    """The error for an error object in a response whose HTTP status was a success."""
    return _error(provider, _error_object({"error": error}), model, None)


def _error_object(body: Json) -> JsonObject:
    """The error object. Not all servers nest it, and some send only a text."""
    match body:
        case {"error": dict(error)} | [{"error": dict(error)}, *_]:
            return error
        case {"error": str(message), "code": str(code)}:
            return {"message": message, "code": code}
        case {"error": str(message)} | {"detail": str(message)}:
            return {"message": message}
        case {"detail": [{"msg": str(message)}, *_]}:
            return {"message": message}
        case _:
            return body if isinstance(body, dict) and "message" in body else {}


def _error(
    provider: Provider, error: JsonObject, model: str, failure: Failure | None
) -> CorralError:
    message, code, kind = _message(error), _text(error, "code"), _text(error, "type")
    status, named = failure.status if failure else _status(error.get("code")), code or kind
    if named in REFUSED:
        return ContentRefused(
            f"{provider.title} refused: {message or named}",
            hint="Rephrase the prompt: the vendor's content policy refused it.",
            provider=provider.name,
            http_status=status,
            provider_code=named,
        )
    name, delay = _name(code or "", kind or "", status), _delay_from_message(message or "")
    facts = ErrorFacts(name=name, code=named, retry_after=delay)
    if failure is None:
        text = message or named or "an error without a message"
        return vendor_error(provider, text, facts, status=status, model=model)
    if any(header in failure.headers for header in ("retry-after", "retry-after-ms")):
        facts = msgspec.structs.replace(facts, retry_after=None)
    return error_from_failure(failure, message, facts)


def _message(error: JsonObject) -> str | None:
    message = _text(error, "message")
    match error:
        case {"metadata": {"raw": str(raw)}}:  # a router's copy of the vendor's message
            return f"{message}: {raw[:300]}"
        case _:
            return message


def _name(code: str, kind: str, status: int | None) -> str | None:
    """The name of the error, where the code or the type is more specific than the status."""
    if code in BY_CODE or status is not None:
        return BY_CODE.get(code)
    return BY_TYPE.get(kind) or ("INVALID_ARGUMENT" if _IMAGE.search(code) else None)


def _text(error: JsonObject, name: str) -> str | None:
    value = error.get(name)
    return str(value) if isinstance(value, str | int) and value != "" else None


def _status(code: Json) -> int | None:
    """The HTTP status in ``code``, where routers put the status of the vendor."""
    digits = str(code) if isinstance(code, str | int) else ""
    if digits.isdecimal() and 400 <= int(digits) < 600:
        return int(digits)
    return None


def _delay_from_message(message: str) -> float | None:
    found = _WAIT.search(message)
    if found is None or not (found[1] or found[2]):
        return None
    try:
        rest = float(found[2] or 0)
    except ValueError:
        return None
    return int(found[1] or 0) * 60 + (rest / 1000 if found[3] == "ms" else rest)
