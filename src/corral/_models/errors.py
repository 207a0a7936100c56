"""Turns HTTP statuses into errors, for all vendors, with the time at which a rate limit ends. Each
vendor's module reads its own bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from corral import errors
from corral._core.durations import seconds
from corral._models.spec import FailedResponse, Provider
from corral.errors import CorralError

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


class VendorFacts(msgspec.Struct, frozen=True, kw_only=True):
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
    failure: FailedResponse,
    message: str | None,
    facts: VendorFacts | None = None,
) -> CorralError:
    """The error for a response whose status is not a success."""
    facts = facts or VendorFacts()
    if facts.retry_after is None and facts.resets_at is None:
        facts = replace(facts, retry_after=retry_after_header(failure.headers))
    text = message
    if not text:  # the body is not the vendor's JSON: most likely it is a proxy's page
        page = re.sub(_MARKUP, " ", failure.body[:4000].decode("utf-8", "replace"))
        text = " ".join(page.split())[:200] or f"HTTP {failure.status}"
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
    facts: VendorFacts,
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


def invalid_response(provider: Provider, data: bytes, error: Exception) -> CorralError:
    """The error for data that is not what the vendor documents."""
    sample = data[:200].decode("utf-8", "replace")
    return errors.StreamBroken(f"{provider.title} sent an invalid response: {error}", frame=sample)


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


_MILLISECONDS_FROM = 1e12
"""A larger number is a time in milliseconds since 1970."""
_SINCE_1970_FROM = 1e9
"""A larger number is a time in seconds since 1970, a smaller one a duration."""


def resets_at(names: Iterable[str], headers: Mapping[str, str], now: float) -> float | None:
    """The latest time at which a limit ends that is used up, in seconds since 1970. ``names`` are
    the headers with such times. A limit of which something remains is not the cause."""
    moments: list[float] = []
    for name in names:
        value = headers.get(name)
        remaining = headers.get(name.replace("reset", "remaining"), "0").strip()
        if value is not None and remaining in ("0", "0.0"):
            moment = read_time(value, now)
            if moment is not None:
                moments.append(moment)
    return max(moments, default=None)


def read_time(value: str, now: float) -> float | None:
    """A time in seconds since 1970: RFC 3339, a number, or a duration such as ``6m0s``."""
    text = value.strip()
    try:
        number = float(text)
    except ValueError:
        try:
            return _after(seconds(text), now)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        return None if moment.tzinfo is None else moment.timestamp()
    if number >= _MILLISECONDS_FROM:
        return number / 1000
    return number if number >= _SINCE_1970_FROM else _after(number, now)


def _after(duration: float, now: float) -> float | None:
    """None if the current time is not known."""
    return now + duration if now and duration >= 0 else None


def next_midnight(zone: str, now: float) -> float | None:
    """When the day ends in a time zone; None if the time or the zone is not known."""
    from zoneinfo import ZoneInfo

    if not now:
        return None
    try:
        local = datetime.fromtimestamp(now, ZoneInfo(zone))
    except (OSError, ValueError, LookupError):  # the machine has no such zone
        return None
    day = (local + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return day.timestamp()
