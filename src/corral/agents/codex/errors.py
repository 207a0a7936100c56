"""Codex's failures: the text of an error, or how the process ended → one error each."""

from __future__ import annotations

import json
import re

from corral import errors
from corral.agents.shared import exit_errors
from corral.agents.shared.api_errors import QUOTA, unauthenticated
from corral.agents.spec import Ending
from corral.errors import CorralError
from corral.values import Json, as_object

IGNORED_STDERR = (
    "WARNING: proceeding, even though we could not create PATH aliases",
    "Reading additional input from stdin",
    "Reading prompt from stdin",
    "Stack backtrace:",
    "   ",
)

KEY_HINT = "Set OPENAI_API_KEY, or sign in once with `codex login`."
_STATUS = re.compile(r"(?:unexpected status|last status:?) (\d{3})")
_BY_STATUS: dict[str, type[CorralError]] = {
    "400": errors.InvalidRequest,
    "401": errors.AuthenticationFailed,
    "402": errors.QuotaSpent,
    "403": errors.AccessDenied,
    "404": errors.ModelNotFound,
    "413": errors.ContextLengthExceeded,
    "429": errors.RateLimited,
}

_SIGNS: tuple[tuple[tuple[str, ...], type[CorralError]], ...] = (
    (("quota", "billing", "usage limit", "credits"), errors.QuotaSpent),
    (("rate limit", "rate_limit", "too many requests"), errors.RateLimited),
    (
        ("context length", "context_length", "context window", "input exceeds"),
        errors.ContextLengthExceeded,
    ),
    (
        ("api key", "missing environment variable", "not logged in", "unauthorized", "log in"),
        errors.AuthenticationFailed,
    ),
    (("does not exist", "model_not_found", "no such model"), errors.ModelNotFound),
    (("content_filter", "flagged", "usage polic"), errors.ContentRefused),
    (("high demand", "overloaded", "server error", "server_error"), errors.ServerFailed),
    (
        ("connection failed", "error sending request", "waiting for network", "dns error"),
        errors.NetworkFailed,
    ),
    (("stream disconnected", "stream closed", "idle timeout"), errors.StreamBroken),
    (("invalid_request", "bad_request", "bad request"), errors.InvalidRequest),
)
"""Parts of the text of an API error → the error. The first match counts."""

_HINTS: dict[type[CorralError], str] = {
    errors.AuthenticationFailed: KEY_HINT,
    errors.AccessDenied: "The key is known but not allowed this: check its project and model.",
    errors.QuotaSpent: QUOTA,
    errors.RateLimited: "Wait and try again.",
    errors.ContextLengthExceeded: "Shorten the prompt or start a new session.",
    errors.ModelNotFound: "Give another with model= (--model).",
    errors.ContentRefused: "Rephrase the prompt, or try another model.",
    errors.ServerFailed: "The model's service is at fault: try again.",
    errors.NetworkFailed: "Check the network, the proxy variables and OPENAI_BASE_URL.",
    errors.StreamBroken: "Often transient: try again.",
}


def explain(ending: Ending) -> CorralError | None:
    """None for a success: a completed turn, some answer, and a clean exit."""
    if ending.finish is None:
        return _without_result(ending)
    return exit_errors.explain(ending, "Codex", "codex", lambda _, stderr: error_from_text(stderr))


def explain_acp(ending: Ending) -> CorralError | None:
    """For codex-acp: the error that it reported, or how its process ended."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending)
    if finish.kind == "-32000":
        return errors.AuthenticationFailed(finish.message or "no reason given", hint=KEY_HINT)
    return error_from_text((finish.message or "Codex reported an error without a message").strip())


def error_from_text(message: str) -> CorralError:
    """Codex reports only the text of an API error; sometimes the text is the API's JSON."""
    text, low = _inner(message), message.lower()
    found = _STATUS.search(message)
    kind: type[CorralError] | None = None
    if found is not None:
        kind = _BY_STATUS.get(found[1], errors.ServerFailed if found[1] >= "500" else None)
    if kind is None or kind is errors.RateLimited or kind is errors.InvalidRequest:
        signs = (each for words, each in _SIGNS if any(word in low for word in words))
        kind = next(signs, kind) or errors.ProcessFailed
    return kind(text, hint=_HINTS.get(kind))


def _inner(message: str) -> str:
    """The message inside an API error that is JSON; any other text unchanged."""
    try:
        body: Json = json.loads(message)
    except (ValueError, RecursionError):
        return message
    return str(as_object(as_object(body).get("error")).get("message", message))


_OTHER_VERSION = "corral knows Codex 0.166: install that with `corral agents install codex`."
_STDERR_SIGNS: tuple[tuple[tuple[str, ...], type[CorralError], str], ...] = (
    (("input_too_large",), errors.InputRejected, "The prompt is too long: put it into files."),
    (("no rollout found", "thread/resume"), errors.ResumeLost, "Start a new session."),
    (("MCP servers failed",), errors.ToolFailed, "A requested MCP server did not start."),
    (("Error loading config", "feature flag"), errors.SettingsRejected, _OTHER_VERSION),
)
"""Parts of stderr of a Codex that ended without a result → the error."""


def _last_lines(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return "\n".join([line for line in lines if not line.startswith(IGNORED_STDERR)][-6:])


def _without_result(ending: Ending) -> CorralError:
    stderr = _last_lines(ending.stderr)
    if ending.signal is not None:
        return errors.KilledBySignal(f"Codex was killed by signal {ending.signal}")
    for signs, kind, hint in _STDERR_SIGNS:
        if any(sign in stderr for sign in signs):
            return kind(stderr, hint=hint)
    if ending.code == 2:
        return errors.SettingsRejected(stderr or "Codex refused its arguments", hint=_OTHER_VERSION)
    if ending.code in (126, 127):
        return errors.BrokenInstall(
            stderr or "the program could not be run",
            hint="Install it again: corral agents install codex",
        )
    if ending.code == 0:
        return errors.StreamBroken("Codex exited without completing its turn")
    if _STATUS.search(stderr):
        return error_from_text(stderr)
    failed = f"Codex failed (exit {ending.code}): {stderr or 'no reason given'}"
    return unauthenticated(stderr, KEY_HINT) or errors.ProcessFailed(failed)
