"""The manager loop: a node that watches a child pipeline.

One cycle reads the state of the child, steers it, checks the stop condition, and waits. The
functions change the state and add commands. When one returns an outcome, the manager's node has
ended with it, and the caller ends the node.
"""

from __future__ import annotations

from corral._pipelines import conditions
from corral._pipelines.graph import Node, does, dotfile
from corral._pipelines.scheduler.commands import Steer
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.run_context import RunContext
from corral._pipelines.scheduler.state import RunLane, deep_copy
from corral.values import Json

MAX_CYCLES = 1000
RUNNING = "running"
OUTCOME = "stack.child.outcome"
"""The key exists only after the child has ended."""


def start_child(run: RunContext, lane: RunLane, node: Node) -> None:
    """Add the command that starts the child. Raises ``ValueError`` if the node names none."""
    if not dotfile(run.graph, node):
        raise ValueError("no child pipeline is named; set stack.child_dotfile")
    lane.context["stack.child.status"] = RUNNING
    lane.context.pop(OUTCOME, None)  # of an earlier visit
    run.open(lane, lane.visit, "child")


def run_cycle(run: RunContext, lane: RunLane, node: Node) -> Outcome | None:
    """Start a cycle: steer the child if the node does that, else check. Raises ``ValueError``."""
    lane.cycle += 1
    lane.context["stack.manager.cycle"] = lane.cycle
    steers = does(node, "steer") and bool(node.text("prompt"))
    if steers and 1 < lane.cycle <= node.number("manager.max_cycles", MAX_CYCLES):
        run.open(lane, f"{lane.visit}~{lane.cycle}.steer", "visit")
        return None
    return check(run, lane, node)


def steer_child(run: RunContext, lane: RunLane, node: Node, outcome: Outcome) -> Outcome | None:
    """Send the child what the manager's own prompt returned, then check."""
    if outcome.ok and outcome.context_updates and lane.visit in run.state.open:
        run.add(Steer(child=lane.visit, updates=outcome.context_updates))
    return check(run, lane, node)


def check(run: RunContext, lane: RunLane, node: Node) -> Outcome | None:
    """The manager's outcome, or None after it added a wait for the next cycle. Raises
    ``ValueError``."""
    stop = node.text("manager.stop_condition")
    unknown = OUTCOME if lane.visit in run.state.open else ""
    if stop and conditions.compile(stop).holds(conditions.lookup_in(lane.context), unknown):
        return Outcome(notes="the stop condition is met")
    if lane.cycle > (most := node.number("manager.max_cycles", MAX_CYCLES)):
        return failed(f"max cycles exceeded: {most}", retryable=False)
    run.open(lane, f"{lane.visit}~{lane.cycle}", "wait")
    return None


def observe(run: RunContext, lane: RunLane, node: Node, seen: dict[str, Json]) -> Outcome | None:
    """Start a cycle with what was seen of the child. A child that was seen after its end is not
    judged by that: its outcome follows and ends the manager. Raises ``ValueError``."""
    if does(node, "observe"):
        lane.context.update({f"stack.child.{key}": value for key, value in deep_copy(seen).items()})
    return run_cycle(run, lane, node) if seen.get("status", RUNNING) == RUNNING else None


def ended_context(outcome: Outcome) -> dict[str, Json]:
    """What the manager's context says about a child that has ended."""
    return {
        "stack.child.status": "completed" if outcome.ok else "failed",
        OUTCOME: outcome.status,
    }
