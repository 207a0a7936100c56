"""A manager watches over a child pipeline: observe, steer, check, wait, so many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.events import Json
from corral.pipelines import conditions
from corral.pipelines.graph import Graph, Node
from corral.pipelines.orders import Steer
from corral.pipelines.outcome import Outcome, failed
from corral.pipelines.state import Lane

if TYPE_CHECKING:
    from corral.pipelines.walk import Walk

POLL = 45.0
CYCLES = 1000
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


def starts_child(node: Node) -> bool:
    return node.attrs.get("stack.child_autostart", True) not in (False, "false")


def does(node: Node, action: str) -> bool:
    actions = node.text("manager.actions", ACTIONS)
    return action in (name.strip() for name in actions.split(","))


def steers(node: Node) -> bool:
    return does(node, "steer") and bool(node.text("prompt"))


def poll(node: Node) -> float:
    """Seconds between two looks. Raises ``ValueError``."""
    if not does(node, "wait"):
        return 0.0
    return node.seconds("manager.poll_interval", POLL) or 0.0


def start(walk: Walk, lane: Lane, node: Node) -> None:
    """The child begins. Raises ``ValueError`` where none is named."""
    if not dotfile(walk.graph, node):
        raise ValueError("no pipeline is named (stack.child_dotfile)")
    lane.context["stack.child.status"] = "running"
    walk.book.open(lane, lane.visit, "child")


def cycle(walk: Walk, lane: Lane, node: Node) -> None:
    """What was observed is in the context: steer, then check. Raises ``ValueError``."""
    lane.cycle += 1
    lane.context["stack.manager.cycle"] = lane.cycle
    if 1 < lane.cycle <= node.number("manager.max_cycles", CYCLES) and steers(node):
        walk.book.open(lane, f"{lane.visit}~{lane.cycle}.steer", "visit")
    else:
        check(walk, lane, node)


def steer(walk: Walk, lane: Lane, node: Node, id: str, outcome: Outcome) -> None:
    """The child is told what the manager's own prompt came to."""
    walk.book.answered(lane, id)
    if walk.spend(outcome):
        return
    if outcome.ok and outcome.context_updates and lane.visit in walk.state.open:
        walk.book.add(Steer(child=lane.visit, updates=outcome.context_updates))
    check(walk, lane, node)


def check(walk: Walk, lane: Lane, node: Node) -> None:
    """Enough, too much, or wait and look again. Raises ``ValueError``."""
    stop = node.text("manager.stop_condition")
    if stop and conditions.compile(stop).holds(conditions.look_in(lane.context)):
        walk.end(lane, Outcome(notes="the stop condition is met"))
    elif lane.cycle > (most := node.number("manager.max_cycles", CYCLES)):
        walk.end(lane, failed(f"max cycles exceeded: {most}", retryable=False))
    else:
        walk.book.open(lane, f"{lane.visit}~{lane.cycle}", "wait")


def seen(looks: dict[str, Json]) -> dict[str, Json]:
    return {f"stack.child.{key}": value for key, value in looks.items()}


def ended(outcome: Outcome) -> dict[str, Json]:
    return {
        "stack.child.status": "completed" if outcome.ok else "failed",
        "stack.child.outcome": outcome.status,
    }
