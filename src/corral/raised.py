"""The exceptions behind ``error`` events."""

from __future__ import annotations

from typing import Any, cast

from corral import errors, events
from corral.errors import FACTS, CorralError, Phase


def from_event(error: events.Error, result: object = None) -> CorralError:
    """The exception behind an ``error`` event, of its own class, with all its facts."""
    kind = by_code().get(error.code, errors.RemoteError)
    facts = {name: value for name, value in error.facts.items() if name in FACTS}
    raised = kind(
        error.message,
        hint=error.hint,
        phase=cast("Phase | None", error.phase),
        retryable=error.retryable,
        **cast("dict[str, Any]", facts),
    )
    raised.result = result
    return raised


def by_code() -> dict[str, type[CorralError]]:
    """Every class of the tree under its code. What other modules add to it is their own: it
    is made of more than an event carries."""
    found: dict[str, type[CorralError]] = {}
    pending: list[type[CorralError]] = [CorralError]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(k for k in kind.__subclasses__() if k.__module__ == errors.__name__)
    return found
