"""What a run may spend, as the attributes of its graph say it."""

from __future__ import annotations

import math

import msgspec

from corral.errors import PipelineInvalid
from corral.pipelines import node_kinds
from corral.pipelines.graph import SPENDING_LIMITS, Edge, Graph, Value

RAISES = {"add_cost": "max_cost", "add_tokens": "max_total_tokens", "add_calls": "max_calls"}
"""Attributes of an edge that leads on from a gate: they raise the limits of the run."""


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """None: no limit."""

    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_calls: int | None = None
    pauses: bool = False
    """Whether model calls wait at a limit, instead of being refused."""

    @property
    def exist(self) -> bool:
        return not self.max_cost is self.max_total_tokens is self.max_calls is None


def run_limits(graph: Graph) -> RunLimits:
    """Raises ``PipelineInvalid`` if a limit is not a number above 0."""
    found = {
        name: _amount(name, given, "the graph")
        for name in SPENDING_LIMITS
        if (given := graph.attrs.get(name)) not in (None, "")
    }
    at_limit = graph.attrs.get("on_budget") or "stop"
    if at_limit not in ("stop", "pause"):
        raise PipelineInvalid(f"on_budget={at_limit} of the graph: it is stop or pause")
    return RunLimits(
        max_cost=found.get("max_cost"),
        max_total_tokens=_as_int(found.get("max_total_tokens")),
        max_calls=_as_int(found.get("max_calls")),
        pauses=at_limit == "pause",
    )


def raises_of(edge: Edge) -> dict[str, float]:
    """By how much an edge raises the limits of the run, by the name of the limit. Raises
    ``PipelineInvalid``."""
    return {
        limit: _amount(name, edge.attrs[name], f"the edge to {edge.target}")
        for name, limit in RAISES.items()
        if edge.attrs.get(name) not in (None, "")
    }


def check_raises(graph: Graph, limits: RunLimits) -> None:
    """Raises ``PipelineInvalid`` if an edge raises a limit in vain."""
    for edge in graph.edges:
        if RAISES.keys().isdisjoint(edge.attrs):
            continue
        for limit in raises_of(edge):
            where = f"the edge from {edge.source} to {edge.target} raises {limit}"
            source = graph.nodes.get(edge.source)
            if source is not None and source.kind != node_kinds.WAIT_HUMAN.name:
                raise PipelineInvalid(f"{where}: only the choices of a gate can")
            if getattr(limits, limit) is None:
                raise PipelineInvalid(f"{where}, but the graph has no {limit}")


def _amount(name: str, given: Value | None, of: str) -> float:
    try:
        amount = float(given or 0)
    except ValueError:
        raise PipelineInvalid(f"{name}={given} of {of} is not a number") from None
    if not 0 < amount < math.inf:
        raise PipelineInvalid(f"{name} of {of} must be greater than 0, got: {given}")
    return amount


def _as_int(amount: float | None) -> int | None:
    return None if amount is None else int(amount)
