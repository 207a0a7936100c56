"""The limits of a run: visits of a node, money, tokens."""

from __future__ import annotations

from corral.errors import PipelineInvalid
from corral.pipelines.graph import Graph, Node
from corral.pipelines.scheduler.outcome import Outcome
from corral.pipelines.scheduler.state import State

MAX_VISITS = 50
VISIT_KEYS = ("max_visits", "max_node_visits", "default_max_visits")
"""Graph attributes that set the limit; the first one that is set wins."""


class Limits:
    """The limits of a graph. Raises ``PipelineInvalid`` if one is not a number."""

    def __init__(self, graph: Graph) -> None:
        for key in VISIT_KEYS:
            if (visits := _number(graph, key)) is not None:
                self._visits = int(visits)
                break
        else:
            self._visits = MAX_VISITS
        self._money = _number(graph, "max_budget_usd")
        self._tokens = _number(graph, "max_total_tokens")

    def visits(self, node: Node) -> int:
        """How often this node may be visited: its own ``max_visits``, else the graph's. Raises
        ``ValueError``."""
        given = node.attrs.get("max_visits")
        if given is None or given == "":
            return self._visits
        try:
            return int(given)
        except ValueError:
            raise ValueError(f"max_visits={given} is not a number") from None

    def spend(self, state: State, outcome: Outcome) -> str:
        """Add up what a node cost. Returns why the run must end, or an empty text."""
        state.cost_usd += outcome.cost_usd or 0.0
        state.tokens += outcome.tokens or 0
        if self._money is not None and state.cost_usd > self._money:
            spent = f"{state.cost_usd:.4f} of {self._money:g} USD (max_budget_usd)"
            return f"the budget is spent: {spent}"
        if self._tokens is not None and state.tokens > self._tokens:
            return (
                f"the budget is spent: {state.tokens} of {self._tokens:g} tokens (max_total_tokens)"
            )
        return ""


def _number(graph: Graph, key: str) -> float | None:
    given = graph.attrs.get(key)
    if given is None or given == "":
        return None
    try:
        return float(given)
    except ValueError:
        raise PipelineInvalid(f"{key}={given} of the graph is not a number") from None
