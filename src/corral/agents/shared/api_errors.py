"""The error text of a model's service, as an agent passes it on → one error each.

For agents without error codes of their own. The HTTP status at the start of the text is less
specific than the text, so it counts only if the text is unknown.
"""

from __future__ import annotations

import re

from corral import errors
from corral.errors import CorralError

SERVICE_FAULT = "The model's service is at fault: try again."
_SHORTER = "Shorten the prompt or start a new session."
QUOTA = "The account's quota is spent: wait, pay, or change key."
_AUTHENTICATION = ("api key", "api_key", "unauthorized", "authenticat", "not logged in")
_MODEL = "Give another with model= (--model)."
UNKNOWN_MODEL = (
    "model not found",
    "does not exist",
    "no such model",
    "unknown model",
    "model_not_found",
)
SPENT = (
    "quota",
    "billing",
    "credit balance",
    "payment required",
    "insufficient credit",
    "insufficient balance",
    "insufficient funds",
    "more credits",
)
"""Parts of the messages of services for a 402, in lower case."""
NETWORK = (
    "connection error",
    "connect error",
    "fetch failed",
    "econnre",
    "enotfound",
    "eai_again",
    "etimedout",
    "enetunreach",
    "ehostunreach",
    "getaddrinfo",
    "socket",
)
"""Parts of the messages for a connection that failed, in lower case."""
_GUESS = "possible quota limitations"
"""A guess that one agent adds to every 429; it says nothing about the account."""

_SIGNS: tuple[tuple[tuple[str, ...], type[CorralError], str | None], ...] = (
    (SPENT, errors.QuotaSpent, QUOTA),
    (("context length", "context window", "maximum context", "prompt is too long", "token limit"),
     errors.ContextLengthExceeded, _SHORTER),
    (UNKNOWN_MODEL, errors.ModelNotFound, _MODEL),
    (("content filter", "content_filter", "safety"), errors.ContentRefused,
     "Rephrase the prompt, or try another model."),
    (NETWORK, errors.NetworkFailed,
     "Check the network, the proxy variables and the service's address."),
)  # fmt: skip
_STATUS: dict[str, tuple[type[CorralError], str | None]] = {
    "400": (errors.InvalidRequest, None),
    "402": (errors.QuotaSpent, QUOTA),
    "403": (errors.AccessDenied, None),
    "404": (errors.ModelNotFound, _MODEL),
    "413": (errors.ContextLengthExceeded, _SHORTER),
    "429": (errors.RateLimited, "Wait and try again."),
}


def error_from_service(text: str, key_hint: str) -> CorralError:
    """``ProcessFailed`` for an unknown text."""
    low = text.lower().replace(_GUESS, "")
    found = re.search(r"\b([45]\d\d)\b", text)
    status = found[1] if found else ""
    if status == "401" or "api key" in low:
        return errors.AuthenticationFailed(text, hint=key_hint)
    for signs, kind, hint in _SIGNS:
        if any(sign in low for sign in signs):
            return kind(text, hint=hint)
    if status.startswith("5"):
        return errors.ServerFailed(text, hint=SERVICE_FAULT)
    kind, hint = _STATUS.get(status, (errors.ProcessFailed, None))
    return kind(text, hint=hint)


def unauthenticated(stderr: str, key_hint: str) -> CorralError | None:
    """The error of a program that ended without a result, if its stderr reports a failed login."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()][-6:]
    text = "\n".join(lines)
    if re.search(r"\b401\b", text) or any(sign in text.lower() for sign in _AUTHENTICATION):
        return errors.AuthenticationFailed(text, hint=key_hint)
    return None
