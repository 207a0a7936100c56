"""The run directory, written from the journal: for people and tools, never the source of truth.

A failure to write it never fails the run. A resumed run writes missing files again, and does not
repeat events that are already in the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from corral.durable.history import EventNumbering
from corral.durable.payloads import Retrying, RunInput
from corral.errors import StorageFailed
from corral.pipelines.execution.run_dir import EVENTS, CheckpointWriter, RunDir
from corral.pipelines.scheduler.commands import Checkpoint, Command, Restart
from corral.pipelines.scheduler.state import State


class Projection:
    def __init__(self, run_input: RunInput, place: Path) -> None:
        folder = RunDir(place)
        self._writer = CheckpointWriter(folder)
        self._stream = EventNumbering(run_input.run_id)
        with contextlib.suppress(StorageFailed):
            folder.create(run_input.graph, run_input.run_id)
        self._count_recorded = _count_recorded(folder)

    def record(self, command: Command | Retrying, state: State) -> None:
        event = self._stream.of(command, time.time())
        if event is not None and self._stream.count > self._count_recorded:
            self._writer.add_event(event)
        if isinstance(command, Checkpoint):
            self._writer.node_ended(command)
            self._writer.save(state)
        elif isinstance(command, Restart):
            self._writer.restart(command.round)

    def catch_up(self, state: State) -> float | None:
        """Write what is due; returns the seconds until the rest is due, None if nothing is left."""
        if not self._writer.is_behind:
            return None
        if self._writer.due <= 0:
            self._writer.save_now(state)
            return None
        return self._writer.due

    def close(self, state: State) -> None:
        self._writer.close(state)


def _count_recorded(folder: RunDir) -> int:
    """How many events the file holds; an incomplete last line, left by a crash, is removed."""
    path = folder.path / EVENTS
    try:
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(path, end)
    except OSError:
        return 0
    return data.count(b"\n")
