"""Tokens and cost of all sessions over time. Blocking."""

from __future__ import annotations

from corral.metering.turn_usage import UsageQuery, UsageSum
from corral.sessions import index
from corral.system import clock
from corral.view.items import tokens
from corral.view.records import UsageReport, UsageRow

MAX_DAYS = 3_660


def report(by: str, days: int) -> UsageReport:
    """The usage of the last days. Raises ``ConfigError``."""
    days = max(1, min(days, MAX_DAYS))
    found = index.usage_report(UsageQuery(by=by, since=clock.now() - days * 86_400))
    return UsageReport(rows=[_row(each) for each in found.rows], by=by, days=days)


def _row(found: UsageSum) -> UsageRow:
    return UsageRow(
        key=found.key,
        tokens=tokens(found.usage),
        cost_usd=found.cost_usd,
        cost_by_source=found.cost_by_source,
        turns_without_cost=found.turns_without_cost,
        turns_partial=found.turns_partial,
        runs=found.sessions,
        turns=found.turns,
    )
