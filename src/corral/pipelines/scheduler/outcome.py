"""The outcome of a node."""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.values import Json

Status = Literal["success", "partial_success", "retry", "fail", "skipped"]
FailureClass = Literal["", "transient", "permanent", "timeout", "auth", "budget", "verdict"]

_SYNONYMS = {"succeeded": "success", "failed": "fail", "failure": "fail"}
"""Other names of a status, in verdicts and in conditions."""


def normalize_status(word: str) -> str:
    """The name of a status as conditions compare it: ``failed`` is ``fail``."""
    return _SYNONYMS.get(word, word)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Contains only JSON values, because it is written to the journal."""

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
