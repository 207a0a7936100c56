"""The outcome of a node, which values it may contain, and the outcome of an error."""

from __future__ import annotations

import math
from typing import Literal, TypeGuard

import msgspec

from corral.errors import (
    AccessDenied,
    AuthenticationFailed,
    BudgetExceeded,
    CallerError,
    ContentRefused,
    ContextLengthExceeded,
    CorralError,
    InputRejected,
    InvalidRequest,
    MissingKey,
    ModelNotFound,
    NotInstalled,
    PermissionRefused,
    PolicyNotLoaded,
    QuotaSpent,
    ReplayMismatch,
    SandboxFailed,
    SettingsRejected,
    TimedOut,
    TurnLimit,
    UntrustedFolder,
    VersionTooOld,
)
from corral.values import Json, is_sequence

Status = Literal["success", "partial_success", "retry", "fail", "skipped"]
FailureClass = Literal["", "transient", "permanent", "timeout", "auth", "budget", "verdict"]

AFTER_LIMIT = "internal.after_limit"
"""The key in the context of an attempt that goes on after a rate limit: the session to resume."""

RESULT = "result"
"""The key of the updates that has the result of a step of a workflow, and of the context of a
workflow that has ended."""

TASK_RESULT = "item"
"""The key of the updates that has the result of a task of a batch."""
LEFT = "left"
"""The field of the result of a task that was not started, because the budget is spent."""

MAX_IN_CONTEXT = 32 * 1024
"""Bytes of an output that go into the context."""

SYNONYMS = {
    "outcome": {"succeeded": "success", "failed": "fail", "failure": "fail"},
    "failure_class": {"transient_infra": "transient", "deterministic": "permanent"},
}
"""Other words for the values of these keys, in verdicts and in conditions."""


def normalize_status(word: str) -> str:
    """The name of a status as conditions compare it: ``failed`` is ``fail``."""
    return SYNONYMS["outcome"].get(word, word)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Contains only JSON values, because it is written to the journal.

    ::

        return_value = pipelines.Outcome(context_updates={"answer": 42})
    """

    status: Status = "success"
    verdict: str = ""
    """The outcome that an agent or model reported, if it is not a status (``needs_work``).
    Conditions on ``outcome`` see it instead of the status."""
    verdict_by: Literal["", "tool", "file", "answer"] = ""
    """How the agent reported the outcome; empty: it did not."""
    preferred_label: str = ""
    suggested_next_ids: tuple[str, ...] = ()
    context_updates: dict[str, Json] = {}
    notes: str = ""
    failure_reason: str = ""
    failure_class: FailureClass = ""
    """The kind of failure; empty: ``permanent``."""
    retryable: bool | None = None
    """Whether another attempt may help: yes after network errors, 429 and 5xx; no after bad
    configuration and denied permissions. None: decided by the status."""
    resets_at: float | None = None
    """The attempt ended at a rate limit, and goes on at this time (seconds since 1970)."""
    attempts: int = 1
    cost_usd: float | None = None
    tokens: int | None = None
    """Tokens that it used; None: unknown."""

    @property
    def ok(self) -> bool:
        return self.status in ("success", "partial_success")


def failed(
    reason: str, *, retryable: bool | None = None, failure_class: FailureClass = ""
) -> Outcome:
    return Outcome(
        status="fail", failure_reason=reason, retryable=retryable, failure_class=failure_class
    )


def failed_task(reason: str, code: str, **fields: Json) -> Outcome:
    """The outcome of a task of a batch that failed for good."""
    outcome = failed(reason, retryable=False)
    return msgspec.structs.replace(outcome, context_updates={TASK_RESULT: {"code": code, **fields}})


UNUSABLE = (
    AccessDenied,
    AuthenticationFailed,
    CallerError,
    ModelNotFound,
    NotInstalled,
    PolicyNotLoaded,
    ReplayMismatch,
    SandboxFailed,
    SettingsRejected,
    UntrustedFolder,
    VersionTooOld,
)
"""Errors of an agent that could not be started or used at all."""
FINAL = (
    *UNUSABLE,
    ContentRefused,
    ContextLengthExceeded,
    InputRejected,
    InvalidRequest,
    PermissionRefused,
    QuotaSpent,
)
"""Errors that another attempt does not fix: a person must change something first."""
CLASSES: tuple[tuple[tuple[type[CorralError], ...], FailureClass], ...] = (
    ((AuthenticationFailed, AccessDenied, MissingKey), "auth"),
    ((BudgetExceeded, QuotaSpent, TurnLimit), "budget"),
    ((TimedOut,), "timeout"),
)
"""The ``failure_class`` of errors. For all others ``retryable`` decides."""


def failure_class(error: CorralError) -> FailureClass:
    for kinds, name in CLASSES:
        if isinstance(error, kinds):
            return name
    return "transient" if error.retryable else "permanent"


def outcome_of_error(error: CorralError) -> Outcome:
    """Network errors, 429 and 5xx are retried; a bad configuration, a bad key or a denied
    permission never. For all other errors the node's own ``max_retries`` decides."""
    reason = error.message if error.hint is None else f"{error.message} ({error.hint})"
    retryable = True if error.retryable else False if isinstance(error, FINAL) else None
    return failed(reason, retryable=retryable, failure_class=failure_class(error))


_LARGEST_FLOAT = math.nextafter(math.inf, 0.0)
MAX_DEPTH = 100
"""Levels of nesting in a value: not every JSON reader can read more."""


def is_dict(value: object) -> TypeGuard[dict[object, object]]:
    return isinstance(value, dict)


def not_json(value: object, depth: int = 0) -> str | None:
    """Why the value is not JSON; None if it is."""
    match value:
        case None | bool():
            return None
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "has a lone surrogate: it cannot be encoded"
            return None
        case int():
            # Readers in other languages have floats only.
            return None if abs(value) <= _LARGEST_FLOAT else "is a number over 1.8e308"
        case float():
            return None if math.isfinite(value) else f"is {value}"
        case _:
            return _not_json_container(value, depth)


def _not_json_container(value: object, depth: int) -> str | None:
    if depth >= MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep"
    if is_sequence(value):
        return next((wrong for item in value if (wrong := not_json(item, depth + 1))), None)
    if not is_dict(value):
        return f"is or contains a {type(value).__name__}"
    for key, item in value.items():
        if not isinstance(key, str):
            return f"has a key that is not text: {key!r}"
        if wrong := not_json(key) or not_json(item, depth + 1):
            return wrong
    return None
