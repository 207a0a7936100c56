"""The events of a run: made from its orders, so that the journal alone tells them all again."""

from __future__ import annotations

from msgspec.structs import replace

from corral.engine.journal import Retrying
from corral.pipelines.events import CheckpointSaved, PipelineEvent, StepRetrying
from corral.pipelines.orders import Checkpoint, Order, Tell


class Stream:
    """Numbers them from 1, the same on replay."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.count = 0

    def of(self, order: Order | Retrying, moment: float) -> PipelineEvent | None:
        """The event of this order, where it has one."""
        event: PipelineEvent
        match order:
            case Tell():
                event = order.event
            case Checkpoint():
                event = CheckpointSaved(node=order.node)
            case Retrying():
                event = StepRetrying(
                    node=order.node,
                    visit=order.visit,
                    attempt=order.attempt,
                    delay=order.delay,
                    reason=order.reason,
                )
            case _:
                return None
        self.count += 1
        return replace(event, seq=self.count, ts=moment, run_id=self._run_id)
