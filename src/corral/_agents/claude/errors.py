"""Claude Code's failures: its own code, its message, or how the process ended → one error each."""

from __future__ import annotations

from msgspec.structs import replace

from corral import errors
from corral._agents.claude.launch import KEY_HINT
from corral._agents.shared.errors import (
    LOGIN_REQUIRED,
    AgentErrors,
    Signs,
    last_lines,
    turn_limit,
)
from corral._agents.spec import TurnEnding
from corral.errors import CorralError

ERRORS = AgentErrors(
    title="Claude Code",
    program="claude",
    key_hint=KEY_HINT,
    address="ANTHROPIC_BASE_URL",
    hints={
        errors.ModelNotFound: "Give another with model= (--model): an alias such as sonnet, or a"
        " full name.",
        errors.StreamBroken: "It was stopped from outside, or crashed; changes made so far remain.",
    },
    stderr_signs=(
        (
            ("native binary not installed",),
            errors.BrokenInstall,
            "Install it again: corral agents install claude",
        ),
    ),
    ended="Claude Code exited without a result: the answer may be cut short",
)
_KINDS: dict[str, type[CorralError]] = {
    "authentication_failed": errors.AuthenticationFailed,
    "billing_error": errors.QuotaSpent,
    "rate_limit": errors.RateLimited,
    "overloaded": errors.ServerFailed,
    "server_error": errors.ServerFailed,
    "model_not_found": errors.ModelNotFound,
}
_OTHER_KINDS: dict[str, tuple[type[CorralError], str]] = {
    "oauth_org_not_allowed": (errors.AccessDenied, "The account's organisation forbids it."),
    "max_output_tokens": (
        errors.StreamBroken,
        "The answer was over the model's limit: ask for less at once, or raise"
        " CLAUDE_CODE_MAX_OUTPUT_TOKENS.",
    ),
}
"""Claude Code's own codes for API errors; for some, what to do instead of the usual hint."""

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
_STARTING: Signs = (
    (("no conversation found", "session id"), errors.ResumeLost),
    (("not logged in", "/login", "invalid api key", "oauth token"), errors.AuthenticationFailed),
)
_SIGNS: Signs = (
    *_STARTING,
    (("prompt is too long", "context window", "context limit"), errors.ContextLengthExceeded),
    (("safeguards flagged", "usage policy"), errors.ContentRefused),
    (("credit balance", "usage limit", "quota", "api error: 402", "payment required"),
     errors.QuotaSpent),
    (("rate limit", "rejected (429)"), errors.RateLimited),
    (("limit reached", "hit your limit"), errors.QuotaSpent),
    (_CONNECTION, errors.NetworkFailed),
    (("issue with the selected model", "model not found"), errors.ModelNotFound),
    (("400", "invalid_request"), errors.InvalidRequest),
    (("403", "forbidden", "permission"), errors.AccessDenied),
    (("overloaded", "api error: 5", "server-side issue"), errors.ServerFailed),
)  # fmt: skip
"""For an error without a code."""


def explain(ending: TurnEnding) -> CorralError | None:
    """The error of a turn; None for a success."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    if finish.ok:
        return ERRORS.after_success(ending)
    if finish.kind == "error_max_turns":
        return turn_limit(ending.run)
    if finish.kind == "error_max_budget_usd":
        limit = ending.run.max_cost
        return errors.BudgetExceeded(
            f"the budget of {f'${limit:g}' if limit else 'the settings'} is spent",
            hint="Raise max_cost, or ask for less.",
        )
    if (finish.stop_reason or "").startswith("aborted"):
        return errors.Interrupted("the turn was stopped")
    message = finish.message or "Claude Code reported an error without a message"
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
        return ERRORS.make(errors.ContextLengthExceeded, message)
    if kind == "invalid_request" and "safeguards" in low:
        return ERRORS.make(errors.ContentRefused, message)
    if kind == "authentication_failed" and "403" in message:
        return errors.AccessDenied(
            message, hint="The key is known but not allowed this: check its workspace and model."
        )
    if kind in ("server_error", "unknown") and any(sign in low for sign in _CONNECTION):
        return ERRORS.make(errors.NetworkFailed, message)
    if kind in _OTHER_KINDS:
        error, hint = _OTHER_KINDS[kind]
        return error(message, hint=hint)
    if kind in _KINDS:
        return ERRORS.make(_KINDS[kind], message)
    return ERRORS.from_signs(message, _SIGNS) or errors.ProcessFailed(message)


def _without_result(ending: TurnEnding) -> CorralError:
    """There is no result line: only the exit code and stderr are known."""
    if ending.signal is None and ending.code == 143:
        ending = replace(ending, signal=15)
    known = ERRORS.without_result(ending)
    stderr = last_lines(ending.stderr)
    if type(known) not in (errors.AuthenticationFailed, errors.ProcessFailed):
        return known
    if "unknown option" in stderr.lower() or stderr.lower().startswith("error: "):
        return errors.InputRejected(stderr)
    return ERRORS.from_signs(stderr, _STARTING) or known
