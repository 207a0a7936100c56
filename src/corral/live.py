"""Running processes of corral, and what they wait for; ``corral.runs`` answers and cancels.

::

    import corral.live

    for request in corral.live.pending():
        print(request.run, request.title)
        corral.runs.answer_sync(request.run, decision="allow_once", request=request.request_id)

The functions block for a moment: call them in a thread from async code.
"""

from __future__ import annotations

import msgspec

from corral._publishing import records
from corral._publishing.control import find, send
from corral._publishing.records import (
    LiveError,
    LiveProcess,
    LiveRequest,
    LiveRun,
    Pending,
    Problem,
)

__all__ = [
    "LiveError",
    "LiveProcess",
    "LiveRun",
    "Pending",
    "Problem",
    "find",
    "pending",
    "processes",
    "runs",
]


def processes() -> list[LiveProcess]:
    """The corral processes of this user that run now, the newest first, each with its runs.

    ::

        for process in corral.live.processes():
            for run in process.runs:
                print(process.pid, run.id, run.state, run.title)
    """
    return records.processes()


def runs() -> list[LiveRun]:
    """The runs of all processes, without their processes."""
    return [run for process in processes() for run in process.runs]


def pending() -> list[Pending]:
    """The requests that wait for a person, with their arguments and the ids of their runs.

    ::

        for request in corral.live.pending():
            corral.runs.answer_sync(request.run, decision="deny", request=request.request_id)
    """
    found: list[Pending] = []
    for process in processes():
        if any(run.pending for run in process.runs):
            try:
                found += send(process, LiveRequest(do="pending")).pending
            except LiveError:
                found += [
                    msgspec.structs.replace(each, run=run.id)
                    for run in process.runs
                    for each in run.pending
                ]
    return found
