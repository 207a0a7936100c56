"""Records what the agent of a node has used, for ``corral usage``: its session is not stored."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral.events import Done, Event, ModelCall
from corral.system import clock, config

if TYPE_CHECKING:
    from corral.pipelines.execution.handlers import NodeContext

BATCH_KINDS = "batch."
"""How the types of the nodes of batches begin."""


@contextmanager
def recorded_usage(
    work: NodeContext, agent: str, *, is_stored: bool
) -> Generator[Callable[[Event], None]]:
    """Yields the function that gets the agent's events. At the end, in whatever way, what they say
    is stored; so a node that was cancelled is counted too. A session that ``is_stored`` is counted
    with the sessions."""
    if is_stored:
        yield work.emit
        return
    found: list[Event] = []

    def emit(event: Event) -> None:
        if isinstance(event, Done | ModelCall):
            found.append(event)
        work.emit(event)

    try:
        yield emit
    finally:
        if found:
            store_usage(work, config.find_agent(agent).name, found)


def store_usage(work: NodeContext, agent: str, events: Sequence[Event]) -> None:
    """Store what the events of an agent say that it has used."""
    from corral.metering import usage_ledger
    from corral.metering.turn_usage import TurnUsages

    usages = TurnUsages(work.run_id, agent, str(work.workspace))
    for event in events:
        usages.add(event)
    is_task = work.node.text("type").startswith(BATCH_KINDS)
    names = {"batch" if is_task else "pipeline": work.graph.name}
    # A run has many nodes: their turns must differ.
    first = int(clock.now() * 1e6)
    usage_ledger.add(replace(turn, turn=first + turn.turn, **names) for turn in usages.finish())
