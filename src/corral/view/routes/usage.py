"""Tokens and cost over time."""

from __future__ import annotations

import asyncio

from corral.view import usage_report
from corral.view.calls import Call, Endpoint, Param
from corral.view.records import UsageReport


async def show_usage(call: Call) -> UsageReport:
    by, days = call.text("by") or "day", call.number("days", 30)
    return await asyncio.to_thread(usage_report.report, by, days)


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
