"""Errors as outcomes: the reason, its class, and whether another attempt may help."""

from __future__ import annotations

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
from corral.pipelines.scheduler.outcome import FailureClass, Outcome, failed

FINAL = (
    AccessDenied,
    AuthenticationFailed,
    CallerError,
    ContentRefused,
    ContextLengthExceeded,
    InputRejected,
    InvalidRequest,
    ModelNotFound,
    NotInstalled,
    PermissionRefused,
    PolicyNotLoaded,
    QuotaSpent,
    ReplayMismatch,
    SandboxFailed,
    SettingsRejected,
    UntrustedFolder,
    VersionTooOld,
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
