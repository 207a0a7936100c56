"""What a run may spend, as the attributes of its graph say it."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from corral._core.spending import LIMITS, BudgetLimits, LimitKwargs
from corral._pipelines import node_kinds
from corral._pipelines.graph import Edge, Graph, Value
from corral.errors import ConfigError, PipelineInvalid
from corral.values import convert_to

if TYPE_CHECKING:
    from corral.run_kwargs import RunKwargs

RAISES = {f"add_{kind.unit}": name for name, kind in LIMITS.items()}
"""Attributes of an edge that leads on from a gate: they raise the limits of the run."""


def run_limits(graph: Graph) -> BudgetLimits:
    """Raises ``PipelineInvalid`` if a limit is not a number above 0."""
    limits = {
        name: kind.number(_amount(name, given, "the graph"))
        for name, kind in LIMITS.items()
        if (given := graph.attrs.get(name)) not in (None, "")
    }
    at_limit = graph.attrs.get("on_budget") or "stop"
    if at_limit not in ("stop", "pause"):
        raise PipelineInvalid(f"on_budget={at_limit} of the graph: it is stop or pause")
    return convert_to({**limits, "pauses": at_limit == "pause"}, BudgetLimits)


def take_limits(
    options: RunKwargs, of_task: LimitKwargs, names: Container[str] = LIMITS
) -> dict[str, Value]:
    """Remove from the options of a run what limits all its model calls together. Returns it as
    attributes of a graph. What is left in ``options`` are the limits of each task or node. Raises
    ``ConfigError``."""
    limits: dict[str, Value] = {}
    if unknown := sorted(of_task.keys() - LIMITS.keys()):
        raise ConfigError(f"task has no limit {unknown[0]!r}", hint=f"It has {', '.join(LIMITS)}.")
    for name in LIMITS:
        for place, limit in (("", options.get(name)), (" of task", of_task.get(name))):
            if isinstance(limit, int | float) and not limit > 0:
                raise ConfigError(f"{name}{place} must be more than 0, got: {limit}")
        if name in names and (limit := options.get(name)) is not None:
            del options[name]  # type: ignore[misc]
            limits[name] = limit  # type: ignore[assignment]
    if limits and (at_limit := options.get("on_budget")) is not None:
        limits["on_budget"] = at_limit
    options.update(cast("RunKwargs", {**of_task}))
    return limits


def with_limits(graph: Graph, limits: Mapping[str, Value]) -> Graph:
    """The graph with these limits, too: the smaller one of two holds. Raises
    ``PipelineInvalid``."""
    if not limits:
        return graph
    own = run_limits(graph).as_dict()
    added = run_limits(Graph(name=graph.name, attrs={**limits})).as_dict()
    smaller = {name: min(limit, own.get(name, limit)) for name, limit in added.items()}
    return replace(graph, attrs={**graph.attrs, **limits, **smaller})


def raises_of(edge: Edge) -> dict[str, float]:
    """By how much an edge raises the limits of the run, by the name of the limit. Raises
    ``PipelineInvalid``."""
    return {
        limit: _amount(name, edge.attrs[name], f"the edge to {edge.target}")
        for name, limit in RAISES.items()
        if edge.attrs.get(name) not in (None, "")
    }


def check_raises(graph: Graph, limits: BudgetLimits) -> None:
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
        raise PipelineInvalid(f"{name} of {of} must be more than 0, got: {given}")
    return amount
