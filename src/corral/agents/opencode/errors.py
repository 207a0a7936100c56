"""OpenCode's failures: the text of an error, or how the process ended → one error each."""

from __future__ import annotations

from corral import errors
from corral.agents.shared.api_errors import QUOTA, SPENT, UNKNOWN_MODEL, unauthenticated
from corral.agents.shared.exit_errors import error_after_success
from corral.agents.spec import Ending
from corral.errors import CorralError

KEY_HINT = (
    "Set the key of the model's provider (OPENAI_API_KEY, ANTHROPIC_API_KEY, …), or sign in once"
    " with `opencode auth login`."
)

_SIGNS: tuple[tuple[tuple[str, ...], type[CorralError], str | None], ...] = (
    (
        ("api key", "api-key", "apikey", "unauthorized", "authentication", "401"),
        errors.AuthenticationFailed,
        KEY_HINT,
    ),
    (
        (*SPENT, "credit", "402"),
        errors.QuotaSpent,
        QUOTA,
    ),
    (
        ("rate limit", "rate_limit", "too many requests", "429"),
        errors.RateLimited,
        "Wait and try again.",
    ),
    (
        (
            "context length",
            "context window",
            "too many tokens",
            "prompt is too long",
            "token limit",
        ),
        errors.ContextLengthExceeded,
        "Shorten the prompt or start a new session.",
    ),
    (
        UNKNOWN_MODEL,
        errors.ModelNotFound,
        "Give another with model= (--model), as provider/model.",
    ),
    (("forbidden", "permission denied", "403"), errors.AccessDenied, None),
    (
        ("cannot connect", "unable to connect", "fetch failed", "econnre", "enotfound", "socket"),
        errors.NetworkFailed,
        "Check the network, the proxy variables and OPENAI_BASE_URL.",
    ),
    (
        ("server error", "server_error", "overloaded", "unavailable", "bad gateway", "timeout"),
        errors.ServerFailed,
        "The model's service is at fault: try again.",
    ),
    (
        ("error 5", "status 5", "status code 5", "server had an error", "internal error"),
        errors.ServerFailed,
        None,
    ),
)
"""Parts of the text of an API error → the error. The first match counts."""


def explain(ending: Ending) -> CorralError | None:
    """The error of a turn; None for a success."""
    finish = ending.finish
    if finish is not None and finish.ok:
        return None
    if finish is not None:
        return _error_from_text(
            (finish.message or "no reason given").removeprefix("Internal error: ")
        )
    stderr = "\n".join(ending.stderr.splitlines()[-6:])
    if ending.signal is not None:
        return errors.KilledBySignal(f"OpenCode was killed by signal {ending.signal}")
    if ending.code in (126, 127) or "postinstall script was not run" in stderr:
        return errors.BrokenInstall(
            stderr or "the program could not be run",
            hint="Install it again: corral agents install opencode",
        )
    return unauthenticated(stderr, KEY_HINT) or errors.StreamBroken(
        f"OpenCode ended unexpectedly (exit {ending.code}): {stderr}".rstrip(": ")
    )


_STOPPED: dict[str, tuple[type[CorralError], str]] = {
    "length": (
        errors.ContextLengthExceeded,
        "the model reached its token limit before the answer was complete",
    ),
    "content-filter": (errors.ContentRefused, "the model's service withheld the answer"),
}
_BY_STATUS: dict[str, tuple[type[CorralError], str | None]] = {
    "401": (errors.AuthenticationFailed, KEY_HINT),
    "402": (errors.QuotaSpent, QUOTA),
    "403": (errors.AccessDenied, None),
    "404": (errors.ModelNotFound, "Give another with model= (--model), as provider/model."),
    "413": (errors.ContextLengthExceeded, "Shorten the prompt or start a new session."),
    "429": (errors.RateLimited, "Wait and try again."),
    "400": (errors.InvalidRequest, None),
}
"""For a text that says no more than the status."""


def explain_headless(ending: Ending) -> CorralError | None:
    """For one process per prompt: success needs the last step *and* a clean exit."""
    finish = ending.finish
    if finish is None and ending.code == 0:
        return errors.StreamBroken(
            "OpenCode ended before its answer was complete",
            hint="A permission request ends its run: allow or deny what it asks for.",
        )
    if finish is None and "session not found" in ending.stderr.lower():
        return errors.ResumeLost("OpenCode no longer knows the session", hint="Start a new one.")
    if finish is None:
        return explain(ending)
    if finish.ok:
        return error_after_success(ending, "OpenCode")
    if finish.message is not None:
        return _error_from_status(finish.kind or "", finish.message)
    kind, text = _STOPPED.get(
        finish.kind or "", (errors.StreamBroken, f"the answer broke off: {finish.kind}")
    )
    return kind(text)


def _error_from_status(status: str, text: str) -> CorralError:
    known = _error_from_text(text)
    if type(known) is not errors.ProcessFailed:
        return known
    if status.isdecimal() and int(status) >= 500:
        return errors.ServerFailed(text, hint="The model's service is at fault: try again.")
    kind, hint = _BY_STATUS.get(status, (errors.ProcessFailed, None))
    return kind(text, hint=hint)


def _error_from_text(text: str) -> CorralError:
    low = text.lower()
    for signs, kind, hint in _SIGNS:
        if any(sign in low for sign in signs):
            return kind(text, hint=hint)
    return errors.ProcessFailed(text)
