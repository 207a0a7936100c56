"""Errors as outcomes: what failed, in a sentence, and whether another attempt may help."""

from __future__ import annotations

from corral.errors import (
    AccessDenied,
    AuthenticationFailed,
    BudgetSpent,
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
"""What is the same at every attempt: somebody must change something first."""


CLASSES: tuple[tuple[tuple[type[CorralError], ...], FailureClass], ...] = (
    ((AuthenticationFailed, AccessDenied, MissingKey), "auth"),
    ((BudgetSpent, QuotaSpent, TurnLimit), "budget"),
    ((TimedOut,), "timeout"),
)
"""``failure_class`` of an error; of the others ``retryable`` decides."""


def failure_class(error: CorralError) -> FailureClass:
    for kinds, name in CLASSES:
        if isinstance(error, kinds):
            return name
    return "transient" if error.retryable else "permanent"


def outcome_of_error(error: CorralError) -> Outcome:
    """Network, 429 and 5xx may be tried again by themselves; bad config, a bad key or a refused
    permission never; of all else the node's own ``max_retries`` decide."""
    reason = error.message if error.hint is None else f"{error.message} ({error.hint})"
    retryable = True if error.retryable else False if isinstance(error, FINAL) else None
    return failed(reason, retryable=retryable, failure_class=failure_class(error))
