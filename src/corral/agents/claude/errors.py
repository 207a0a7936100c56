"""Claude Code's failures: its own code, its message, or how the process ended → one error each."""

from __future__ import annotations

from typing import TypeAlias

from corral import errors
from corral.agents.claude.launch import KEY_HINT
from corral.agents.shared.errors import (
    LOGIN_REQUIRED,
    QUOTA,
    SERVICE_FAULT,
    error_after_success,
    unauthenticated,
)
from corral.agents.spec import TurnEnding
from corral.errors import CorralError

_NETWORK = "Check the network, the proxy variables and ANTHROPIC_BASE_URL."
_SHORTER = "Shorten the prompt or start a new session."
_REPHRASE = "Rephrase the prompt, or try another model."
_MODEL = "Give another with model= (--model): an alias such as sonnet, or a full name."

_KINDS: dict[str, tuple[type[CorralError], str | None]] = {
    "authentication_failed": (errors.AuthenticationFailed, KEY_HINT),
    "oauth_org_not_allowed": (errors.AccessDenied, "The account's organisation forbids it."),
    "billing_error": (errors.QuotaSpent, QUOTA),
    "rate_limit": (errors.RateLimited, "Wait and try again."),
    "overloaded": (errors.ServerFailed, SERVICE_FAULT),
    "server_error": (errors.ServerFailed, SERVICE_FAULT),
    "model_not_found": (errors.ModelNotFound, _MODEL),
    "max_output_tokens": (
        errors.StreamBroken,
        "The answer was over the model's limit: ask for less at once, or raise"
        " CLAUDE_CODE_MAX_OUTPUT_TOKENS.",
    ),
}
"""Claude Code's own codes for API errors."""

_CONNECTION = (
    "unable to connect",
    "connection refused",
    "connection error",
    "connection closed",
    "econnre",
    "enotfound",
    "fetch failed",
    "socket",
)

_Sign: TypeAlias = tuple[tuple[str, ...], type[CorralError], str | None]
_SIGNS: tuple[_Sign, ...] = (
    (("no conversation found", "session id"), errors.ResumeLost, "Start a new session."),
    (("not logged in", "/login", "invalid api key", "oauth token"), errors.AuthenticationFailed,
     KEY_HINT),
    (("prompt is too long", "context window", "context limit"), errors.ContextLengthExceeded,
     _SHORTER),
    (("safeguards flagged", "usage policy"), errors.ContentRefused, _REPHRASE),
    (("credit balance", "usage limit", "quota", "api error: 402", "payment required"),
     errors.QuotaSpent, QUOTA),
    (("rate limit", "rejected (429)"), errors.RateLimited, "Wait and try again."),
    (("limit reached", "hit your limit"), errors.QuotaSpent, QUOTA),
    (_CONNECTION, errors.NetworkFailed, _NETWORK),
    (("issue with the selected model", "model not found"), errors.ModelNotFound, _MODEL),
    (("400", "invalid_request"), errors.InvalidRequest, None),
    (("403", "forbidden", "permission"), errors.AccessDenied, None),
    (("overloaded", "api error: 5", "server-side issue"), errors.ServerFailed, SERVICE_FAULT),
)  # fmt: skip
"""Parts of the text of an error without a code → the error. The first match counts."""


def explain(ending: TurnEnding) -> CorralError | None:
    """The error of a turn; None for a success."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    if finish.ok:
        return error_after_success(ending, "Claude Code")
    message = finish.message or "Claude Code reported an error without a message"
    if finish.kind == "error_max_turns":
        return errors.TurnLimit(
            f"the turn limit of {ending.run.max_turns or 'the settings'} was reached",
            hint="Raise max_turns (--max-turns), or ask for less.",
        )
    if finish.kind == "error_max_budget_usd":
        limit = ending.run.max_cost
        return errors.BudgetExceeded(
            f"the budget of {f'${limit:g}' if limit else 'the settings'} is spent",
            hint="Raise max_cost, or ask for less.",
        )
    if (finish.stop_reason or "").startswith("aborted"):
        return errors.Interrupted("the turn was stopped")
    return _error_from_api(message, finish.kind or "", finish.stop_reason or "")


def explain_acp(ending: TurnEnding) -> CorralError | None:
    """For ACP: the same messages, as errors of the protocol."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    if finish.ok:
        return None
    message = (finish.message or "no reason given").removeprefix("Internal error: ")
    kind = "authentication_failed" if finish.kind == LOGIN_REQUIRED else ""
    return _error_from_api(message, kind, "")


def _error_from_api(message: str, kind: str, reason: str) -> CorralError:
    low = message.lower()
    if reason == "prompt_too_long":
        return errors.ContextLengthExceeded(message, hint=_SHORTER)
    if kind == "invalid_request" and "safeguards" in low:
        return errors.ContentRefused(message, hint=_REPHRASE)
    if kind == "authentication_failed" and "403" in message:
        return errors.AccessDenied(
            message, hint="The key is known but not allowed this: check its workspace and model."
        )
    if kind in ("server_error", "unknown") and any(sign in low for sign in _CONNECTION):
        return errors.NetworkFailed(message, hint=_NETWORK)
    if kind in _KINDS:
        error, hint = _KINDS[kind]
        return error(message, hint=hint)
    return _by_sign(message, _SIGNS) or errors.ProcessFailed(message)


def _without_result(ending: TurnEnding) -> CorralError:
    """There is no result line: only the exit code and stderr are known."""
    stderr = "\n".join(ending.stderr.strip().splitlines()[-6:])
    if ending.signal is not None or ending.code == 143:
        return errors.KilledBySignal(
            f"Claude Code was killed by signal {ending.signal or 15}",
            hint="Out of memory is the usual cause of signal 9." if ending.signal == 9 else None,
        )
    if ending.code in (126, 127) or "native binary not installed" in stderr:
        return errors.BrokenInstall(
            stderr or "the program could not be run",
            hint="Install it again: corral agents install claude",
        )
    if ending.code == 0:
        return errors.StreamBroken(
            "Claude Code exited without a result: the answer may be cut short",
            hint="It was stopped from outside, or crashed; changes made so far remain.",
        )
    if "unknown option" in stderr.lower() or stderr.lower().startswith("error: "):
        return errors.InputRejected(stderr)
    failed = errors.ProcessFailed(f"failed (exit {ending.code}): {stderr or 'no reason given'}")
    return _by_sign(stderr, _SIGNS[:2]) or unauthenticated(stderr, KEY_HINT) or failed


def _by_sign(text: str, table: tuple[_Sign, ...]) -> CorralError | None:
    """The error of the first row of the table that has a part of the text."""
    low = text.lower()
    for signs, error, hint in table:
        if any(sign in low for sign in signs):
            return error(text, hint=hint)
    return None
