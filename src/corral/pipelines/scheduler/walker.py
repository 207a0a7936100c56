"""What those who act at a node need of the walk that they are part of."""

from __future__ import annotations

from typing import Protocol

from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.scheduler.pending import PendingCommands
from corral.pipelines.scheduler.routing import Routes
from corral.pipelines.scheduler.state import Lane, State


class Walker(Protocol):
    graph: Graph
    state: State
    routes: Routes
    book: PendingCommands

    def ready(self, lane: Lane) -> None:
        """It was put at a node, and enters it next."""

    def end(
        self, lane: Lane, outcome: Outcome, answered: str | None = None, join: str = ""
    ) -> None:
        """The outcome of the lane's node is known: keep it, and go on by it, or at ``join``."""

    def stop(self, lane: Lane) -> None:
        """End all that this lane has under way, its own branches first."""

    def spend(self, outcome: Outcome) -> bool:
        """Whether that was more than the run may."""
        ...
