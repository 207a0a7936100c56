"""What the modules of the scheduler share while they handle a message."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler.pending import PendingCommands
from corral.pipelines.scheduler.routing import Routes
from corral.pipelines.scheduler.state import Lane, State


@dataclass
class RunContext:
    graph: Graph
    state: State
    routes: Routes
    pending: PendingCommands
    ready: deque[Lane] = field(default_factory=deque[Lane])
    """Lanes that stand at a node which they have not entered yet."""

    def node_of(self, lane: Lane) -> Node:
        return self.graph.nodes[lane.node]
