"""The outcome of a node."""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.events import Json

Status = Literal["success", "partial_success", "retry", "fail", "skipped"]
FailureClass = Literal["", "transient", "permanent", "timeout", "auth", "budget", "verdict"]

_SAME = {"succeeded": "success", "failed": "fail", "failure": "fail"}
"""Other words for a status, in verdicts and in conditions."""


def status_word(word: str) -> str:
    """A word for an outcome as it is compared: ``failed`` is ``fail``."""
    return _SAME.get(word, word)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """JSON all through: it is journalled."""

    status: Status = "success"
    verdict: str = ""
    """The author's own word for the outcome, where an agent or a model reported one that is no
    status (``needs_work``). Conditions on ``outcome`` see it in place of the status."""
    verdict_by: Literal["", "tool", "file", "answer"] = ""
    """How the outcome was reported, where it was: see ``verdict``."""
    preferred_label: str = ""
    suggested_next_ids: tuple[str, ...] = ()
    context_updates: dict[str, Json] = {}
    notes: str = ""
    failure_reason: str = ""
    failure_class: FailureClass = ""
    """What kind of failure it was; empty: ``permanent``."""
    retryable: bool | None = None
    """Whether another attempt may help: network, 429, 5xx do; bad config and refused
    permissions never. None: as the status says."""
    attempts: int = 1
    cost_usd: float | None = None
    tokens: int | None = None
    """What it spent, where that is known."""

    @property
    def ok(self) -> bool:
        return self.status in ("success", "partial_success")


def failed(
    reason: str, *, retryable: bool | None = None, failure_class: FailureClass = ""
) -> Outcome:
    return Outcome(
        status="fail", failure_reason=reason, retryable=retryable, failure_class=failure_class
    )
