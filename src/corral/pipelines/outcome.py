"""What a node came to, and what it takes to say so."""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.events import Json

Status = Literal["success", "partial_success", "retry", "fail", "skipped"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """JSON all through: it is journalled."""

    status: Status = "success"
    preferred_label: str = ""
    suggested_next_ids: tuple[str, ...] = ()
    context_updates: dict[str, Json] = {}
    notes: str = ""
    failure_reason: str = ""
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


def failed(reason: str, *, retryable: bool | None = None) -> Outcome:
    return Outcome(status="fail", failure_reason=reason, retryable=retryable)
