"""Tokens and cost of all sessions over time. Blocking."""

from __future__ import annotations

from corral.sessions import usage_totals
from corral.sessions.usage_totals import UsageQuery, UsageSum
from corral.system import clock
from corral.view.items import tokens
from corral.view.records import UsageReport, UsageRow

MAX_DAYS = 3_660


def report(by: str, days: int) -> UsageReport:
    """The usage of the last days. Raises ``ConfigError``."""
    days = max(1, min(days, MAX_DAYS))
    found = usage_totals.report(UsageQuery(by=by, since=clock.now() - days * 86_400))
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
