"""Text tables with aligned columns, and dates in them."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.core.terminal_text import clean

if TYPE_CHECKING:
    from corral.agents.report import PolicyRow
    from corral.policy import SandboxRow


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned text; the last column wraps at the terminal's width."""
    # On one line, without control characters, so that the length of a cell is its width.
    cells = ([" ".join(clean(cell).split("\n")) for cell in row] for row in rows)
    lines = [list(head), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    indent = sum(widths) + 2 * len(widths)
    from shutil import get_terminal_size  # loads the compression modules

    room = max(30, get_terminal_size((100, 24)).columns - indent)
    out: list[str] = []
    for line in lines:
        start = "".join(f"{cell:{width}}  " for cell, width in zip(line, widths, strict=False))
        last = textwrap.wrap(line[-1], room) or [""]
        out.append((start + last[0]).rstrip())
        out += [" " * indent + more for more in last[1:]]
    return "\n".join(out)


def format_time(moment: float | None) -> str:
    return "–" if not moment else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def format_cost(usd: float | None) -> str:
    return "–" if usd is None else f"${usd:.4f}"


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
