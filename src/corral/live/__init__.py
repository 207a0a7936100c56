"""Running processes of corral: see them, answer what they ask, cancel and steer them.

::

    import corral.live

    for request in corral.live.pending():
        print(request.run, request.title)
        corral.live.answer(request.run, "allow_once", request_id=request.request_id)
"""

from __future__ import annotations

from corral.live.client import (
    add_budget,
    answer,
    answer_with_token,
    cancel,
    find,
    pending,
    processes,
    runs,
    steer,
)
from corral.live.records import LiveError, LiveProcess, LiveRun, Pending, Problem

__all__ = [
    "LiveError",
    "LiveProcess",
    "LiveRun",
    "Pending",
    "Problem",
    "add_budget",
    "answer",
    "answer_with_token",
    "cancel",
    "find",
    "pending",
    "processes",
    "runs",
    "steer",
]
