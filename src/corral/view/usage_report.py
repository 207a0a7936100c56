"""Tokens and cost of all sessions over time. Blocking.

Every turn's last event has them. Logs are searched as for the list of runs, so only what is new is
read; a report that would take too long says that it is not complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, get_args

from corral.errors import ConfigError
from corral.sessions import index, store
from corral.system import clock, paths
from corral.values import Usage
from corral.view.catalog import search_sessions
from corral.view.items import tokens
from corral.view.records import UsageReport, UsageRow
from corral.view.session_logs import SessionLogs, Turn

By = Literal["day", "agent", "model", "project"]
MAX_SECONDS = 5.0
"""How long one report may take."""
BUDGET = 64 * 1024 * 1024
"""Bytes of one log that are searched at once."""
MAX_DAYS = 3_660


class _Sum:
    def __init__(self) -> None:
        self.usage = Usage()
        self.cost: float | None = None
        self.sessions: set[str] = set()
        self.turns = 0

    def add(self, session: str, turn: Turn) -> None:
        self.usage += turn.usage
        if turn.cost.usd is not None:
            self.cost = (self.cost or 0.0) + turn.cost.usd
        self.sessions.add(session)
        self.turns += 1


def report(logs: SessionLogs, by: str, days: int) -> UsageReport:
    """The usage of the last days. Raises ``ConfigError``."""
    if by not in get_args(By):
        raise ConfigError(f"by must be one of {', '.join(get_args(By))}")
    days = max(1, min(days, MAX_DAYS))
    watch = clock.Stopwatch()
    since = clock.now() - days * 86_400
    sums: dict[str, _Sum] = {}
    is_complete = True
    for match in search_sessions(index.Query(since=since)):
        if watch.seconds > MAX_SECONDS:
            is_complete = False
            break
        facts = logs.facts(paths.sessions() / match.meta.id / store.EVENTS, BUDGET)
        is_complete = is_complete and facts.is_complete
        for turn in facts.turns:
            if turn.info.started >= since:
                key = _key(by, match.meta, turn)
                sums.setdefault(key, _Sum()).add(match.meta.id, turn)
    return UsageReport(rows=[*_rows(sums, by)], by=by, days=days, complete=is_complete)


def _key(by: str, meta: store.Meta, turn: Turn) -> str:
    match by:
        case "day":
            return time.strftime("%Y-%m-%d", time.localtime(turn.info.started))
        case "agent":
            return meta.agent
        case "model":
            return turn.info.model or meta.model or "unknown"
        case _:
            return meta.cwd


def _rows(sums: dict[str, _Sum], by: str) -> Iterator[UsageRow]:
    """By day in order of time, else the most expensive first."""

    def weight(key: str) -> tuple[float, int]:
        return -(sums[key].cost or 0.0), -(sums[key].usage.total or 0)

    for key in sorted(sums) if by == "day" else sorted(sums, key=weight):
        each = sums[key]
        yield UsageRow(
            key=key,
            tokens=tokens(each.usage),
            cost_usd=each.cost,
            runs=len(each.sessions),
            turns=each.turns,
        )
