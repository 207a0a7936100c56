"""A manager watches over a child pipeline: observe, steer, check, wait, so many times."""

from __future__ import annotations

from corral.events import Json
from corral.pipelines import conditions
from corral.pipelines.graph import Node, does, dotfile
from corral.pipelines.scheduler.commands import Steer
from corral.pipelines.scheduler.outcome import Outcome, failed
from corral.pipelines.scheduler.state import Lane
from corral.pipelines.scheduler.walker import Walker

CYCLES = 1000


def starts_child(node: Node) -> bool:
    return node.attrs.get("stack.child_autostart", True) not in (False, "false")


def steers(node: Node) -> bool:
    return does(node, "steer") and bool(node.text("prompt"))


def start(walk: Walker, lane: Lane, node: Node) -> None:
    """The child begins. Raises ``ValueError`` where none is named."""
    if not dotfile(walk.graph, node):
        raise ValueError("no pipeline is named (stack.child_dotfile)")
    lane.context["stack.child.status"] = "running"
    walk.book.open(lane, lane.visit, "child")


def cycle(walk: Walker, lane: Lane, node: Node) -> None:
    """What was observed is in the context: steer, then check. Raises ``ValueError``."""
    lane.cycle += 1
    lane.context["stack.manager.cycle"] = lane.cycle
    if 1 < lane.cycle <= node.number("manager.max_cycles", CYCLES) and steers(node):
        walk.book.open(lane, f"{lane.visit}~{lane.cycle}.steer", "visit")
    else:
        check(walk, lane, node)


def steer(walk: Walker, lane: Lane, node: Node, id: str, outcome: Outcome) -> None:
    """The child is told what the manager's own prompt came to."""
    walk.book.answered(lane, id)
    if walk.spend(outcome):
        return
    if outcome.ok and outcome.context_updates and lane.visit in walk.state.open:
        walk.book.add(Steer(child=lane.visit, updates=outcome.context_updates))
    check(walk, lane, node)


def check(walk: Walker, lane: Lane, node: Node) -> None:
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
