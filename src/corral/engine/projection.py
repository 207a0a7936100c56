"""What people and tools see of a run: its events, directory and spans. The run never reads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral.engine.node_runner import Retrying
from corral.pipelines.events import (
    CheckpointSaved,
    PipelineCompleted,
    PipelineEvent,
    PipelineFailed,
    StepRetrying,
)
from corral.pipelines.execution.run_dir import CheckpointWriter, RunDir
from corral.pipelines.scheduler.commands import Checkpoint, Command, EmitEvent, Restart
from corral.pipelines.scheduler.state import State

if TYPE_CHECKING:
    from corral.pipelines.run_spans import LivePipelineSpans


_END_EVENTS = (PipelineCompleted, PipelineFailed)


class EventNumbering:
    """Turns commands into events, numbered from 1; a replay gives the same numbers."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.count = 0

    def of(self, command: Command | Retrying, at: float) -> PipelineEvent | None:
        """The event of this command; None if it has none."""
        event: PipelineEvent
        match command:
            case EmitEvent():
                event = command.event
            case Checkpoint():
                event = CheckpointSaved(node=command.node)
            case Retrying():
                event = StepRetrying(
                    node=command.node,
                    visit=command.visit,
                    attempt=command.attempt,
                    delay=command.delay,
                    reason=command.reason,
                )
            case _:
                return None
        self.count += 1
        return replace(event, seq=self.count, ts=at, run_id=self._run_id)


class Projection:
    """Writes the events of a run, and its directory if ``folder`` is given. ``recorded``: how many
    events are in the file already. A failure to write never fails the run.

    With ``is_journaled`` the end of a node is safe when its command comes, and reported at
    once. In memory the file is all there is: a node is reported when it is written."""

    def __init__(
        self,
        run_id: str,
        folder: RunDir | None,
        *,
        spans: LivePipelineSpans | None,
        recorded: int = 0,
        is_journaled: bool = False,
    ) -> None:
        self.spans = spans
        self.writer: CheckpointWriter | None = None
        if folder is not None:
            self.writer = CheckpointWriter(folder, None if is_journaled else self._report_saved)
        self.on_event: Callable[[PipelineEvent], None] | None = None
        self._numbering = EventNumbering(run_id)
        self._recorded = recorded
        self._is_journaled = is_journaled

    def record(self, command: Command | Retrying, state: State) -> None:
        writer = self.writer
        if writer is None and self.spans is None and self.on_event is None:
            return
        is_end = isinstance(command, EmitEvent) and isinstance(command.event, _END_EVENTS)
        if is_end and writer is not None and not self._is_journaled:
            writer.flush(state)  # reports of nodes come before the end
        if self._is_journaled or not isinstance(command, Checkpoint):
            self._write(self._numbering.of(command, time.time()))
        if writer is not None:
            if isinstance(command, Checkpoint):
                writer.node_ended(command, state)
            elif isinstance(command, Restart):
                writer.restart(command.round)

    def _report_saved(self, node: str) -> None:
        self._write(self._numbering.of(Checkpoint(node=node), time.time()))

    def _write(self, event: PipelineEvent | None) -> None:
        if event is None or self._numbering.count <= self._recorded:
            return
        if self.writer is not None:
            self.writer.add_event(event)
        if self.spans is not None:
            self.spans.add(event)
        if self.on_event is not None:
            self.on_event(event)
