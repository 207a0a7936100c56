"""Tokens and cost of all sessions over time."""

from __future__ import annotations

import asyncio

from corral.metering.turn_usage import UsageQuery
from corral.sessions import index
from corral.system import clock
from corral.view.calls import Call, Endpoint, Param
from corral.view.items import tokens
from corral.view.records import UsageReport, UsageRow

MAX_DAYS = 3_660


async def show_usage(call: Call) -> UsageReport:
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


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/api/usage",
        "usage",
        "Tokens and cost of the last days.",
        show_usage,
        UsageReport,
        params=(
            Param("by", "`day`, `agent`, `model`, `project` or `session`."),
            Param("days", "How many days; 30 by default.", "integer"),
        ),
    ),
)
