"""Turns HTTP statuses into errors, for all vendors. Each vendor's module reads its own bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from corral import errors
from corral.errors import CorralError
from corral.models.reset_headers import resets_at
from corral.models.spec import Failure, Provider

BY_STATUS: dict[int, type[CorralError]] = {
    400: errors.InvalidRequest,
    401: errors.AuthenticationFailed,
    402: errors.QuotaSpent,
    403: errors.AccessDenied,
    404: errors.ModelNotFound,
    405: errors.InvalidRequest,
    408: errors.TimedOut,
    409: errors.ServerFailed,
    413: errors.ContextLengthExceeded,
    422: errors.InvalidRequest,
    425: errors.ServerFailed,
    429: errors.RateLimited,
}

BY_NAME: dict[str, type[CorralError]] = {
    "INVALID_ARGUMENT": errors.InvalidRequest,
    "FAILED_PRECONDITION": errors.InvalidRequest,
    "OUT_OF_RANGE": errors.InvalidRequest,
    "UNAUTHENTICATED": errors.AuthenticationFailed,
    "PERMISSION_DENIED": errors.AccessDenied,
    "NOT_FOUND": errors.ModelNotFound,
    "RESOURCE_EXHAUSTED": errors.RateLimited,
    "DEADLINE_EXCEEDED": errors.TimedOut,
    "UNAVAILABLE": errors.ServerFailed,
    "INTERNAL": errors.ServerFailed,
    "ABORTED": errors.ServerFailed,
    "UNKNOWN": errors.ServerFailed,
    "DATA_LOSS": errors.ServerFailed,
    "UNIMPLEMENTED": errors.InvalidRequest,
    "CANCELLED": errors.ServerFailed,
}
"""gRPC status names, which Google's APIs send besides the HTTP status."""

TOO_LONG = re.compile(
    r"context[_ ](length|window)|maximum context|too many (input )?tokens|prompt is too long"
    r"|input (is )?too long|exceeds? the (maximum|model'?s?) (number of tokens|context|input)"
    r"|input token count|string too long|request too large|request_too_large",
    re.IGNORECASE,
)
"""How vendors report that the conversation is too long."""

SPENT = re.compile(
    r"insufficient[_ ]quota|billing|credit balance|per ?day|daily|exceeded your current quota",
    re.IGNORECASE,
)
"""How vendors report that a quota is spent and waiting a minute does not help."""

HINTS: dict[type[CorralError], str] = {
    errors.InvalidRequest: "The vendor rejected this request; its message says what to fix.",
    errors.AccessDenied: "The key has no right to this model or API: see the vendor's console.",
    errors.ContextLengthExceeded: "Send less: a shorter history, or smaller files.",
    errors.RateLimited: "Wait and try again, or send fewer requests at once.",
    errors.QuotaSpent: "The quota or the credit is spent: raise it, or use another key or model.",
    errors.ServerFailed: "The vendor's server failed: try again.",
    errors.TimedOut: "The vendor gave up waiting: send less, or ask for less.",
}


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a vendor's body says about an error."""

    name: str | None = None
    """A gRPC status name."""
    code: str | None = None
    """The vendor's own error code."""
    retry_after: float | None = None
    resets_at: float | None = None
    """When the limit ends, in seconds since 1970."""
    spent: bool = False
    """A quota is spent, and waiting does not help."""
    is_transient: bool = False
    """The vendor says that waiting helps, whatever the message looks like."""


def error_from_failure(
    failure: Failure,
    message: str | None,
    facts: ErrorFacts | None = None,
) -> CorralError:
    """The error for a response whose status is not a success."""
    facts = facts or ErrorFacts()
    if facts.retry_after is None and facts.resets_at is None:
        facts = replace(facts, retry_after=retry_after_header(failure.headers))
    text = message or _body_excerpt(failure.body) or f"HTTP {failure.status}"
    error = vendor_error(failure.provider, text, facts, status=failure.status, model=failure.model)
    if isinstance(error, errors.RateLimited):
        # Add the time at which the limit ends, if it is known. A spent quota does not end with the
        # limits in the headers.
        if error.resets_at is None and error.retry_after is not None and failure.now:
            error.resets_at = failure.now + error.retry_after
        elif error.resets_at is None and not isinstance(error, errors.QuotaSpent):
            wire = failure.provider.wire
            resets = [name for field, name in wire.rate_limit_headers.items() if "reset" in field]
            names = (*resets, *wire.reset_headers)
            error.resets_at = resets_at(names, failure.headers, failure.now)
    return error


def vendor_error(
    provider: Provider,
    message: str,
    facts: ErrorFacts,
    *,
    status: int | None = None,
    model: str = "",
) -> CorralError:
    """The error for a vendor's message, by HTTP status and gRPC name."""
    kind = _kind(status, facts.name)
    if kind is errors.InvalidRequest and TOO_LONG.search(f"{facts.code} {message}"):
        kind = errors.ContextLengthExceeded
    sounds_spent = not facts.is_transient and SPENT.search(f"{facts.code} {message}")
    if kind is errors.RateLimited and (facts.spent or sounds_spent):
        kind = errors.QuotaSpent
    hint = HINTS.get(kind)
    if kind is errors.AuthenticationFailed:
        variables = " or ".join(provider.key_env) or "the configured key"
        hint = f"{provider.title} rejected the key: check {variables}."
    elif kind is errors.ModelNotFound:
        hint = f"{provider.title} has no model {model!r}, or this key may not use it."
    return kind(
        f"{provider.title}: {message}" + (f" (HTTP {status})" if status else ""),
        hint=hint,
        retryable=False if kind is errors.TimedOut else None,
        retry_after=facts.retry_after,
        resets_at=facts.resets_at,
        provider=provider.name,
        http_status=status,
        provider_code=facts.code or facts.name,
    )


def _kind(status: int | None, name: str | None) -> type[CorralError]:
    # UNKNOWN is sent where the status of a proxy has no gRPC name.
    vague = name == "UNKNOWN" and status is not None
    if name in BY_NAME and not vague and not (status and status >= 500):
        return BY_NAME[name]
    if status is None:
        return errors.ServerFailed
    if status in BY_STATUS:
        return BY_STATUS[status]
    return errors.ServerFailed if status >= 500 else errors.InvalidRequest


def retry_after_header(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from the headers of the response."""
    if (millis := headers.get("retry-after-ms")) is not None:
        try:
            return max(0.0, float(millis) / 1000)
        except ValueError:
            pass
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # slow to import, and needed for few errors

    try:
        moment, now = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(0.0, (moment - now).total_seconds())


_MARKUP = r"<(script|style)(?:(?!<script|<style).)*?</\1>|<[^<>]*>"
"""A tag, or a script or style sheet. One that does not end is read up to the next, so that no text
is read twice."""


def _body_excerpt(body: bytes) -> str:
    """The first text of a body that is not the vendor's JSON: most likely a proxy's page."""
    text = re.sub(_MARKUP, " ", body[:4000].decode("utf-8", "replace"))
    return " ".join(text.split())[:200]
