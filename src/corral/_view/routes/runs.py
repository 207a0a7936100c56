"""The list of runs, what they used, merge queues, comparisons, and what this server is."""

from __future__ import annotations

import asyncio
import sys

from starlette.responses import Response

from corral._comparison import store
from corral._comparison.summary import ComparisonSummary, summary
from corral._engine.dbos.database import is_installed
from corral._metering.turn_usage import UsageQuery
from corral._sessions import index
from corral._system import clock, paths
from corral._view.calls import ApiCall, Endpoints, Param, event_stream
from corral._view.catalog import RunQuery
from corral._view.items import tokens
from corral._view.records import (
    MergeList,
    MergesUpdate,
    NotFound,
    PendingUpdate,
    RunPage,
    RunsUpdate,
    ServerInfo,
    UsageReport,
    UsageRow,
)
from corral._view.stream import follow_runs
from corral.version import __version__

ENDPOINTS = Endpoints()
MAX_DAYS = 3_660


@ENDPOINTS.get("/api/server", "About this server.")
async def server(call: ApiCall) -> ServerInfo:
    pending = await call.catalog.pending()
    return ServerInfo(
        version=__version__,
        home=str(paths.home()),
        platform=sys.platform,
        engine=is_installed(),
        pending=pending,
        open=call.services.open_at,
    )


@ENDPOINTS.get(
    "/api/runs",
    "All runs, the newest first.",
    Param("kind", "`session`, `pipeline` or `batch`."),
    Param("state", "A state; also `live`, and `waiting` for all that wait for a person."),
    Param("agent", "The name of an agent."),
    Param("q", "A text in a transcript, or in the name of a pipeline or batch."),
    Param("cursor", "`next` of the page before."),
    Param("limit", "Runs of a page, at most 200.", "integer"),
)
async def runs(call: ApiCall) -> RunPage:
    query = RunQuery(
        kind=call.text("kind"),
        state=call.text("state"),
        agent=call.text("agent"),
        text=call.text("q"),
        cursor=call.text("cursor"),
        limit=call.number("limit", 50),
    )
    return await call.catalog.runs(query)


@ENDPOINTS.get(
    "/api/stream",
    "Changes of the list of runs, of what waits for a person, and of the merge queues.",
    events=(RunsUpdate, PendingUpdate, MergesUpdate),
)
async def stream(call: ApiCall) -> Response:
    return event_stream(follow_runs(call.catalog, call.services.closing))


@ENDPOINTS.get("/api/merges", "The merge queues, the one that changed last first.")
async def merges(call: ApiCall) -> MergeList:
    return await call.catalog.merge_queues()


@ENDPOINTS.get(
    "/api/usage",
    "Tokens and cost of the last days.",
    Param("by", "`day`, `project`, `agent`, `model`, `kind`, `label` or `run`."),
    Param("days", "How many days; 30 by default.", "integer"),
)
async def usage(call: ApiCall) -> UsageReport:
    by = call.text("by") or "day"
    days = max(1, min(call.number("days", 30), MAX_DAYS))
    query = UsageQuery(by=by, since=clock.now() - days * 86_400)
    report = await asyncio.to_thread(index.usage_report, query)
    rows = [
        UsageRow(
            key=row.key,
            tokens=tokens(row.usage),
            cost_usd=row.cost_usd,
            cost_by_source=row.cost_by_source,
            turns_without_cost=row.turns_without_cost,
            turns_partial=row.turns_partial,
            runs=row.sessions,
            turns=row.turns,
        )
        for row in report.rows
    ]
    return UsageReport(rows=rows, by=by, days=days)


@ENDPOINTS.get(
    "/api/compare/{id}", "A comparison of agents: pass rates, differences, and every attempt."
)
async def comparison(call: ApiCall) -> ComparisonSummary:
    name = call.path("id")
    if name not in await asyncio.to_thread(store.names):
        raise NotFound(f"there is no comparison {name!r}")
    return await asyncio.to_thread(summary, name)
