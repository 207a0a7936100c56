"""The states of a workflow in corral's words, and in those of the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

State: TypeAlias = Literal[
    "delayed", "queued", "running", "succeeded", "failed", "cancelled", "dead_letter"
]
"""``delayed``: it is queued at a recorded time. ``failed``: the engine failed; the failure of a run
or node is an output. ``dead_letter``: its executors died too often while they ran it."""
OPEN_STATES: tuple[State, ...] = ("delayed", "queued", "running")
"""States of workflows that have not ended."""
ENDED_STATES: tuple[State, ...] = ("succeeded", "failed", "cancelled", "dead_letter")

_OF_LIBRARY: dict[str, State] = {
    "DELAYED": "delayed",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "succeeded",
    "ERROR": "failed",
    "CANCELLED": "cancelled",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "dead_letter",
}


def from_library(status: object) -> State:
    """What is no state of the library counts as a failure: another program wrote it."""
    return _OF_LIBRARY.get(str(status), "failed")


def to_library(states: Sequence[State]) -> list[str]:
    return [status for status, state in _OF_LIBRARY.items() if state in states]
