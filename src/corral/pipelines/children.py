"""What a node says of the pipeline that it runs: which one, where, and how it is watched."""

from __future__ import annotations

from corral.pipelines.graph import Graph, Node

POLL = 45.0
ACTIONS = "observe,wait"


def dotfile(graph: Graph, node: Node) -> str:
    """The pipeline that an ``include`` or a manager runs; empty: none is named."""
    for key in ("dotfile", "pipeline", "path", "stack.child_dotfile"):
        if found := node.text(key):
            return found
    return str(graph.attrs.get("stack.child_dotfile", ""))


def workdir(graph: Graph, node: Node) -> str:
    """Where it works; empty: where this one does."""
    return node.text("stack.child_workdir") or str(graph.attrs.get("stack.child_workdir", ""))


def does(node: Node, action: str) -> bool:
    actions = node.text("manager.actions", ACTIONS)
    return action in (name.strip() for name in actions.split(","))


def poll(node: Node) -> float:
    """Seconds between two looks. Raises ``ValueError``."""
    if not does(node, "wait"):
        return 0.0
    return node.seconds("manager.poll_interval", POLL) or 0.0
