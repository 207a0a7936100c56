"""Text tables with aligned columns, and dates in them."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from corral._cli.ui import terminal
from corral._core.spending import dollars
from corral._core.terminal_text import clean

if TYPE_CHECKING:
    from corral._agents.report import PolicyRow
    from corral.policy import SandboxRow


NARROWEST = 8
"""Columns of a table get no narrower at a terminal."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned text. At a terminal it fits the width: the widest columns but the first, which
    identifies the row, are wrapped. Elsewhere a row is one line, for other programs."""
    # On one line, without control characters, so that the length of a cell is its width.
    cells = ([" ".join(clean(cell).split("\n")) for cell in row] for row in rows)
    lines = [list(head), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    if sys.stdout.isatty():
        room = terminal.size(sys.stdout)[0] - 2 * (len(widths) - 1)
        while sum(widths) > room and max(widths[1:], default=0) > NARROWEST:
            widths[1 + widths[1:].index(max(widths[1:]))] -= 1
    out: list[str] = []
    for line in lines:
        wrapped = [
            textwrap.wrap(cell, width) if len(cell) > width else [cell]
            for cell, width in zip(line, widths, strict=True)
        ]
        for parts in zip_longest(*wrapped, fillvalue=""):
            padded = (f"{part:{width}}" for part, width in zip(parts, widths, strict=True))
            out.append("  ".join(padded).rstrip())
    return "\n".join(out)


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
