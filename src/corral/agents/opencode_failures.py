"""How OpenCode fails: the text of an error, or its end → one error each, with what to do."""

from __future__ import annotations

from corral import errors
from corral.agents.profile import Ending
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
        ("quota", "billing", "credit", "payment required", "402"),
        errors.QuotaSpent,
        "The provider's quota is spent: wait, pay, or change key.",
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
        ("model not found", "does not exist", "no such model", "unknown model", "model_not_found"),
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
"""What the text of an API error holds, and what it then is; the first that fits."""


def explain(ending: Ending) -> CorralError | None:
    """None for a success; else what went wrong."""
    finish = ending.finish
    if finish is not None and finish.ok:
        return None
    if finish is not None:
        return _of_text((finish.message or "no word of why").removeprefix("Internal error: "))
    said = "\n".join(ending.stderr.splitlines()[-6:])
    if ending.signal is not None:
        return errors.KilledBySignal(f"OpenCode was killed by signal {ending.signal}")
    if ending.code in (126, 127) or "postinstall script was not run" in said:
        return errors.BrokenInstall(
            said or "the program could not be run",
            hint="Install it again: corral agents install opencode",
        )
    return errors.StreamBroken(
        f"OpenCode ended by itself (exit {ending.code}): {said}".rstrip(": ")
    )


def _of_text(text: str) -> CorralError:
    low = text.lower()
    for signs, kind, hint in _SIGNS:
        if any(sign in low for sign in signs):
            return kind(text, hint=hint)
    return errors.ProcessFailed(text)
