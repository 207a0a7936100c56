"""The results of a comparison as text."""

from __future__ import annotations

from collections.abc import Iterator

from corral._comparison.summary import ComparisonSummary, difference_text, rate_text
from corral._core.spending import dollars
from corral._core.terminal_text import counted
from corral._core.text_tables import aligned

MOST_ROWS = 30
"""Attempts that are listed one by one."""


def report_lines(found: ComparisonSummary, *, rates: bool = True) -> Iterator[str]:
    """The results as text. ``rates``: how often each agent passed; of one question without a
    verifier that says nothing."""
    if len(found.attempts) <= MOST_ROWS:
        columns = ("attempt", "verdict", "time", "tokens", "cost", "files", "reason")
        yield aligned(
            columns,
            [
                (
                    row.id,
                    row.verdict,
                    _seconds(row.seconds),
                    _count(row.tokens),
                    _cost(row.cost_usd),
                    str(len(row.files)),
                    row.reason,
                )
                for row in found.attempts
            ],
        )
        yield ""
    if rates:
        head = ("agent", "pass rate (95 %)", "passed", "missing", "time", "tokens", "cost", "model")
        rows = [
            (
                row.agent,
                rate_text(row.rate),
                f"{row.rate.passed}/{row.rate.attempts}",
                str(row.missing + row.pending),
                _seconds(row.median_seconds),
                _count(row.tokens),
                _cost(row.cost_usd),
                " · ".join(filter(None, (", ".join(row.models) or "–", ", ".join(row.versions)))),
            )
            for row in found.agents
        ]
        yield aligned(head, rows)
        for each in found.differences:
            clear = " *" if each.is_clear else ""
            few = (
                f" (of {counted(each.tasks, 'task')} only: optimistic)"
                if each.is_optimistic
                else ""
            )
            yield f"{each.first} − {each.second}: {difference_text(each)}{clear}{few}"
    for row in found.missing:
        some = ", ".join(row.attempts) + (", …" if row.count > len(row.attempts) else "")
        yield f"missing: {row.count} × {row.code} ({some}): {row.reason}"
    for skipped in found.skipped:
        yield f"skipped: {skipped.task}: {skipped.reason}"
    yield from (f"note: {note}" for note in found.notes)
    yield f"comparison {found.id}: {found.done} of {found.total} attempts have a verdict"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _cost(usd: float | None) -> str:
    return "–" if usd is None else dollars(usd)


def _count(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"
