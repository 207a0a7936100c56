"""The same text of a service, or of stderr, is the same error for every agent."""

from __future__ import annotations

import pytest
from support import agent_launch

from corral import errors
from corral._agents import registry
from corral._agents.shared.errors import QUOTA, unauthenticated
from corral._protocol.ndjson import TurnEnd
from corral.errors import CorralError
from corral.options import RunOptions

NAMES = [agent.name for agent in registry.all_agents() if agent.transport.kind != "builtin"]


def explained(
    name: str, finish: TurnEnd | None, code: int | None = 0, stderr: str = ""
) -> CorralError | None:
    run = RunOptions.build(name, {"model": "some-model"})
    return agent_launch.explained(registry.find(name), finish, code, stderr=stderr, run=run)


MESSAGES = {
    "gemini-cli": ("unknown", '[API Error: {"error":{"code":402,"message":"Pay."}}]', 146),
    "gemini-acp": ("402", "Pay.", 0),
    "claude-cli": ("unknown", "API Error: 402 Error 402.", 1),
    "claude-acp": ("-32603", "Internal error: API Error: 402 Error 402.", 0),
    "codex-cli": (None, "unexpected status 402 Payment Required: Pay.", 1),
    "codex-acp": ("-32603", "unexpected status 402 Payment Required: Pay.", 0),
    "opencode-cli": ("402", "Pay.", 1),
    "opencode-acp": ("-32603", "Internal error: Payment Required", 0),
    "copilot-cli": ("402", "Pay.", 1),
    "copilot-acp": ("agent_error", "402 Pay.", 0),
}
"""The message of each agent for an HTTP 402; the others pass on the service's text."""


@pytest.mark.parametrize("name", NAMES)
def test_http_402_is_the_same_error_with_the_same_hint_everywhere(name: str) -> None:
    kind, message, code = MESSAGES.get(name, ("error", "402 Pay.", 1))
    error = explained(name, TurnEnd(ok=False, kind=kind, message=message), code)
    assert type(error) is errors.QuotaSpent, error
    assert (error.hint, error.retryable) == (QUOTA, False)


@pytest.mark.parametrize("expected", ["Error: invalid API key", "Request failed: 401 Unauthorized"])
@pytest.mark.parametrize("name", NAMES)
def test_an_authentication_failure_on_stderr_has_the_usual_advice(name: str, expected: str) -> None:
    error = explained(name, None, 1, f"starting\n{expected}\n")
    assert type(error) is errors.AuthenticationFailed, error
    assert expected in error.message
    assert error.hint
    assert "Set " in error.hint


def test_other_exits_are_not_authentication_failures() -> None:
    assert unauthenticated("TypeError: x is not a function\n  at line 4010", "hint") is None
    assert unauthenticated("", "hint") is None


@pytest.mark.parametrize(
    "expected",
    [
        "models/nope is not found for API version v1beta, or is not supported",
        "Requested entity was not found.",
        "The model `nope` does not exist.",
    ],
)
def test_an_unknown_model_over_acp_is_not_a_server_error(expected: str) -> None:
    error = explained("gemini-acp", TurnEnd(ok=False, kind="500", message=expected))
    assert type(error) is errors.ModelNotFound
    assert not error.retryable
    only_logged = TurnEnd(ok=False, kind="500", message="Zip.")
    logged = explained(
        "gemini-acp", only_logged, 0, "Full report: x ModelNotFoundError: Zip.\n  at"
    )
    assert type(logged) is errors.ModelNotFound
    earlier = explained("gemini-acp", only_logged, 0, "Full report: x ModelNotFoundError: Zap.\n")
    assert type(earlier) is errors.ServerFailed
    other = explained("gemini-acp", TurnEnd(ok=False, kind="500", message="Internal error."))
    assert type(other) is errors.ServerFailed
