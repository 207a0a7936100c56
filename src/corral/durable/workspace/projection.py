"""The run folder, as a projection of the journal: for people and tools, never the truth.

It is written beside the run, and is never its loss when it cannot be. A run that is taken up
again writes anew what is gone, and does not tell twice what is there.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from corral.durable.history import Stream
from corral.durable.payloads import Retrying, RunInput
from corral.errors import StorageFailed
from corral.pipelines.execution.run_dir import EVENTS, CheckpointWriter, RunDir
from corral.pipelines.scheduler.commands import Checkpoint, Command, Restart
from corral.pipelines.scheduler.state import State


class Projection:
    def __init__(self, begun: RunInput, place: Path) -> None:
        folder = RunDir(place)
        self._keeper = CheckpointWriter(folder)
        self._stream = Stream(begun.run_id)
        with contextlib.suppress(StorageFailed):
            folder.create(begun.graph, begun.run_id)
        self._told = _told(folder)

    def see(self, order: Command | Retrying, state: State) -> None:
        event = self._stream.of(order, time.time())
        if event is not None and self._stream.count > self._told:
            self._keeper.tell(event)
        if isinstance(order, Checkpoint):
            self._keeper.ended(order)
            self._keeper.save(state)
        elif isinstance(order, Restart):
            self._keeper.restart(order.round)

    def catch_up(self, state: State) -> float | None:
        """Write what is due; returns the seconds until the rest is, None where there is none."""
        if not self._keeper.is_behind:
            return None
        if self._keeper.due <= 0:
            self._keeper.save_now(state)
            return None
        return self._keeper.due

    def close(self, state: State) -> None:
        self._keeper.close(state)


def _told(folder: RunDir) -> int:
    """How many events the file holds; half a line, left by a crash, is cut off."""
    path = folder.path / EVENTS
    try:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
    except OSError:
        return 0
    return data.count(b"\n")
