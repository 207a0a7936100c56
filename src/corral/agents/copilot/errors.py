"""Copilot's failures: the status or text of an error, or how the process ended → one error each."""

from __future__ import annotations

import re

from corral import errors
from corral.agents.shared import exit_errors
from corral.agents.shared.api_errors import QUOTA, SERVICE_FAULT
from corral.agents.spec import Ending
from corral.errors import CorralError

KEY_HINT = (
    "Set COPILOT_PROVIDER_BASE_URL and COPILOT_PROVIDER_API_KEY for a provider of your own, or"
    " COPILOT_GITHUB_TOKEN for GitHub's."
)
_LOST = "No session, task, or name matched"

_BY_STATUS: dict[int, tuple[type[CorralError], str | None]] = {
    400: (errors.InvalidRequest, None),
    401: (errors.AuthenticationFailed, KEY_HINT),
    402: (errors.QuotaSpent, QUOTA),
    403: (errors.AccessDenied, None),
    404: (errors.ModelNotFound, "Give another with model= (--model)."),
    413: (errors.ContextLengthExceeded, "Shorten the prompt or start a new session."),
    429: (errors.RateLimited, "Wait and try again."),
}
_SIGNS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("authentication failed", "no authentication", "(http 401)", "error: 401"), 401),
    (("rate limit", "(http 429)", "error: 429", "too many requests"), 429),
    (("not found on provider", "(http 404)"), 404),
    (("context length", "context window", "prompt is too long", "too many tokens"), 413),
    (("quota", "(http 402)", "error: 402", "payment required"), 402),
    (("(http 403)", "error: 403"), 403),
    (("error: 5", "(http 5", "server error", "server had an error", "overloaded"), 500),
)


def explain(ending: Ending) -> CorralError | None:
    """None for a success, which needs a result *and* a clean exit."""
    return exit_errors.explain(ending, "Copilot", "copilot", _failed, _LOST, key_hint=KEY_HINT)


def _failed(kind: str, message: str) -> CorralError:
    if kind == "aborted":
        return errors.Interrupted("Copilot was stopped")
    if message.startswith("No response was returned"):
        return errors.EmptyAnswer(message, hint=exit_errors.NO_ANSWER_HINT)
    status = int(kind) if kind.isdecimal() else _status_of(message)
    if status is not None and status >= 500:
        return errors.ServerFailed(message, hint=SERVICE_FAULT)
    if status == 400:
        status = _status_of(message) or 400
    if status is None and any(
        sign in message.lower() for sign in ("connect", "network", "socket", "enotfound")
    ):
        return errors.NetworkFailed(
            message, hint="Check the network, the proxy variables and COPILOT_PROVIDER_BASE_URL."
        )
    error, hint = _BY_STATUS.get(status or 0, (errors.ProcessFailed, None))
    return error(message, hint=hint)


def _status_of(message: str) -> int | None:
    low = message.lower()
    if found := re.match(r"(?:error: )?([45]\d\d) ", low):
        return int(found[1])
    return next((status for signs, status in _SIGNS if any(sign in low for sign in signs)), None)
