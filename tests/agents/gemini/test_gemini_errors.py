"""Every way in which the Gemini CLI ends, and its error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import agent_launch
from support.stream_checks import no_deadline

from corral import errors
from corral._agents import registry
from corral._agents.gemini.stream import read_stderr
from corral._protocol.ndjson import TurnEnd
from corral.errors import CorralError
from corral.events import Error
from corral.options import RunOptions

IGNORED_STDERR = (
    "Warning: True color (24-bit) support not detected. Using a terminal with it helps.\n"
    "Ripgrep is not available. Falling back to GrepTool.\n"
)


def explain(code: int | None, finish: TurnEnd | None = None, **more: Any) -> CorralError | None:
    return agent_launch.explained(registry.find("gemini-cli"), finish, code, **more)


def explained(code: int | None, message: str | None = None, kind: str = "unknown") -> CorralError:
    finish = TurnEnd(ok=False, kind=kind, message=message)
    error = explain(code, finish)
    assert error is not None
    return error


def api(code: int, message: str, **more: object) -> str:
    return f"[API Error: {json.dumps({'error': {'code': code, 'message': message, **more}})}]"


def test_success_needs_a_successful_result_and_a_clean_exit() -> None:
    assert explain(0, TurnEnd(ok=True)) is None


def test_a_clean_exit_without_a_result_is_incomplete() -> None:
    error = explain(0)
    assert type(error) is errors.StreamBroken
    assert error.status == "incomplete"


@pytest.mark.parametrize("code", [1, 41, 53, 173])
def test_an_error_exit_after_a_successful_result_is_an_error(code: int) -> None:
    error = explain(code, TurnEnd(ok=True))
    assert type(error) is errors.ProcessFailed
    assert str(code) in str(error)


def test_a_clean_exit_after_an_error_result_is_an_error() -> None:
    assert isinstance(explained(0, "anything at all"), CorralError)


WITHOUT_RESULT: list[tuple[int, str, type[CorralError]]] = [
    (1, "Unknown argument: frobnicate", errors.ProcessFailed),
    (41, "Invalid auth method selected.", errors.AuthenticationFailed),
    (42, "No input provided via stdin.", errors.InputRejected),
    (42, "Error resuming session: Invalid session identifier", errors.ResumeLost),
    (44, "GEMINI_SANDBOX is true but failed to determine command", errors.SandboxFailed),
    (52, "Error in settings.json: bad JSON", errors.SettingsRejected),
    (53, "Reached max session turns", errors.TurnLimit),
    (54, "no space left on device", errors.ToolFailed),
    (55, "Gemini CLI is not running in a trusted directory.", errors.UntrustedFolder),
    (126, "permission denied", errors.BrokenInstall),
    (127, "node: not found", errors.BrokenInstall),
    (145, "unauthenticated", errors.AuthenticationFailed),
    (173, "slow down", errors.RateLimited),
    (244, "internal", errors.ServerFailed),
    (99, "who knows", errors.ProcessFailed),
]


@pytest.mark.parametrize(("code", "stderr", "kind"), WITHOUT_RESULT)
def test_an_exit_without_a_result_is_explained_by_its_code_and_stderr(
    code: int, stderr: str, kind: type[CorralError]
) -> None:
    error = explain(code, stderr=f"{IGNORED_STDERR}{stderr}\n    at some.js:1:2\n")
    assert error is not None
    assert type(error) is kind
    if code != 53:
        assert stderr in error.message
    assert "Ripgrep" not in error.message
    assert "some.js" not in error.message


@pytest.mark.parametrize("code", [1, 41, 42, 44, 52, 53, 54, 55, 126, 127, 145, 173, 247, 7])
def test_an_exit_without_output_still_has_a_message(code: int) -> None:
    error = explain(code, stderr=IGNORED_STDERR)
    assert error is not None
    assert error.message.strip()


@pytest.mark.parametrize("code", [41, 44, 54, 55, 127, 145])
def test_errors_that_the_caller_can_fix_have_a_hint(code: int) -> None:
    error = explain(code)
    assert error is not None
    assert error.hint


@pytest.mark.parametrize(("signal", "hint"), [(9, True), (15, False), (11, False)])
def test_a_signal_is_reported_whatever_the_exit_code_is(signal: int, hint: bool) -> None:
    error = explain(None, signal=signal)
    assert type(error) is errors.KilledBySignal
    assert str(signal) in error.message
    assert bool(error.hint) is hint


WITH_RESULT: list[tuple[int, str, type[CorralError]]] = [
    (144, api(400, "API key not valid. Please pass a valid API key."), errors.AuthenticationFailed),
    (
        144,
        api(400, "bad", details=[{"reason": "API_KEY_INVALID"}]),
        errors.AuthenticationFailed,
    ),
    (144, api(400, "Unknown field 'x'"), errors.InvalidRequest),
    (
        144,
        api(400, "The input token count (9) exceeds the maximum number of tokens"),
        errors.ContextLengthExceeded,
    ),
    (145, api(401, "no"), errors.AuthenticationFailed),
    (147, api(403, "Permission denied on resource."), errors.AccessDenied),
    (1, api(404, "models/x is not found for API version v1beta"), errors.ModelNotFound),
    (1, "[API Error: models/x is not found for API version v1beta]", errors.ModelNotFound),
    (157, api(413, "too large"), errors.ContextLengthExceeded),
    (173, "[API Error: Resource has been exhausted (e.g. check quota).]\nPlease wait",
     errors.RateLimited),
    (173, api(429, "Quota exceeded", details=[{"quotaId": "RequestsPerDayPerProject"}]),
     errors.QuotaSpent),
    (173, "[API Error: You have exhausted your daily quota on this model.]", errors.QuotaSpent),
    (244, api(500, "internal"), errors.ServerFailed),
    (247, "[API Error: The model is overloaded. Please try again later.]", errors.ServerFailed),
    (246, "[API Error: bad gateway]", errors.ServerFailed),
    (248, "[API Error: deadline]", errors.ServerFailed),
    (1, "[API Error: exception TypeError: fetch failed sending request]", errors.NetworkFailed),
    (1, "[API Error: terminated]", errors.NetworkFailed),
    (1, "[API Error: connect ECONNREFUSED 127.0.0.1:9]", errors.NetworkFailed),
    (1, "[API Error: Incomplete JSON segment at the end]", errors.StreamBroken),
    (1, "[API Error: Could not load the default credentials.]", errors.AuthenticationFailed),
    (1, "[API Error: something new]", errors.ProcessFailed),
    (0, "Model returned an empty response.", errors.EmptyAnswer),
    (0, "The response was blocked due to safety filters.", errors.ContentRefused),
    (0, "Model generated a malformed function call.", errors.StreamBroken),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message", "kind"), WITH_RESULT)
def test_an_error_result_is_explained_by_its_message(
    code: int, message: str, kind: type[CorralError]
) -> None:
    error = explained(code, message)
    assert type(error) is kind
    assert "[API Error" not in error.message
    assert "{" not in error.message


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        ("FatalTurnLimitedError", 53, errors.TurnLimit),
        ("unknown", 53, errors.TurnLimit),
        ("FatalToolExecutionError", 54, errors.ToolFailed),
        ("FatalInputError", 42, errors.InputRejected),
    ],
)
def test_the_clis_own_error_name_decides_first(
    kind: str, code: int, expected: type[CorralError]
) -> None:
    assert type(explained(code, "[API Error: said]", kind)) is expected


def test_the_turn_limit_that_was_set_is_named() -> None:
    finish = TurnEnd(ok=False, kind="FatalTurnLimitedError", message="m")
    error = explain(53, finish, run=RunOptions(agent="gemini-cli", max_turns=3))
    assert error is not None
    assert "limit of 3" in error.message


def test_an_unknown_model_is_named_in_the_error() -> None:
    finish = TurnEnd(ok=False, message=api(404, "no such thing"))
    error = explain(1, finish, run=RunOptions(agent="gemini-cli", model="gemini-9"))
    assert error is not None
    assert error.message == "model gemini-9: no such thing"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please retry in 2s.", 2.0),
        ("Please retry in 12.5s", 12.5),
        ("retry after 1500ms", 1.5),
        ("retry after 30 s", 30.0),
        ("Please retry in a while", None),
        ("retry after ... some time", None),
        ("retry in .s", None),
    ],
)
def test_the_retry_delay_is_read_from_where_it_is_reported(
    text: str, seconds: float | None
) -> None:
    error = explained(173, f"[API Error: {text}]")
    assert type(error) is errors.RateLimited
    assert error.retry_after == seconds
    assert error.hint


BODIES: list[object] = [
    {"error": "invalid_grant"},
    {"error": {"message": "no code"}},
    {"error": {"code": "x", "message": "m"}},
    {"error": {"code": 401, "message": "m", "details": "text"}},
    {"error": {"code": 401, "message": "m", "details": [1, None]}},
    {"error": None},
    ["error"],
    "error",
    None,
    5,
]


@pytest.mark.parametrize("body", BODIES)
def test_an_api_error_of_any_shape_is_explained(body: object) -> None:
    error = explained(145, f"[API Error: {json.dumps(body)}]")
    assert type(error) is errors.AuthenticationFailed


@pytest.mark.deep
@no_deadline
@given(
    code=st.none() | st.integers(0, 255),
    message=st.none() | st.text() | st.builds("[API Error: {}]".format, st.text()),
    kind=st.none() | st.sampled_from(["unknown", "FatalInputError", "x"]),
    stderr=st.text(),
)
def test_any_error_text_is_explained(
    code: int | None, message: str | None, kind: str | None, stderr: str
) -> None:
    for finish in (None, TurnEnd(ok=False, message=message, kind=kind)):
        error = explain(code, finish, stderr=stderr)
        assert isinstance(error, CorralError)
        assert str(error)


def test_the_message_of_a_retry_is_short_and_without_its_stack() -> None:
    line = 'Attempt 3 failed with status 503. Retrying with backoff... _ApiError: {"error":{}}'
    item = read_stderr(line)
    assert isinstance(item, Error)
    assert (item.code, item.recoverable, item.retryable) == ("retrying", True, True)
    assert item.message == "Attempt 3 failed with status 503. Retrying with backoff..."


@pytest.mark.parametrize(
    "line", ["", "Attempt 2 failed: m. Max attempts reached", "  Attempt 1 failed", "Warning: x"]
)
def test_other_lines_of_stderr_are_not_events(line: str) -> None:
    assert read_stderr(line) is None
