"""Text tables with aligned columns, and dates in them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral._cli.ui import terminal
from corral._core.spending import dollars
from corral._core.text_tables import aligned

if TYPE_CHECKING:
    from corral._agents.report import PolicyRow
    from corral.policy import SandboxRow


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """``aligned``. At a terminal it fits the width."""
    return aligned(head, rows, terminal.size(sys.stdout)[0] if sys.stdout.isatty() else None)


def format_time(moment: float | None) -> str:
    return "–" if not moment else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def format_cost(usd: float | None) -> str:
    return "–" if usd is None else dollars(usd)


def format_count(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def policy_table(report: Sequence[PolicyRow]) -> str:
    """What each capability gets and who enforces it, with notes below."""
    lines: list[tuple[str, str]] = []
    for row in report:
        lines.append((row.capability, row.decision))
        lines += [("", row.note)] if row.note else []
    return table(("capability", "policy (enforced by)"), lines)


def sandbox_table(rows: Sequence[SandboxRow]) -> str:
    """What the sandbox enforces: a line for each way out of the workspace."""
    lines = [(row.cell, row.verdict, row.enforcer or "–", row.note) for row in rows]
    return table(("sandbox", "policy", "enforced", "note"), lines)
