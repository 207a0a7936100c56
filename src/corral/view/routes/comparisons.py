"""Comparisons of agents."""

from __future__ import annotations

import asyncio

from corral.comparison import store
from corral.comparison.summary import ComparisonSummary, summary
from corral.view.calls import Call, Endpoint
from corral.view.records import NotFound


async def show_comparison(call: Call) -> ComparisonSummary:
    name = call.path("id")
    if name not in await asyncio.to_thread(store.names):
        raise NotFound(f"there is no comparison {name!r}")
    return await asyncio.to_thread(summary, name)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/api/compare/{id}",
        "comparison",
        "A comparison of agents: pass rates, differences, and every attempt.",
        show_comparison,
        ComparisonSummary,
    ),
)
