"""The tables and charts of ``docs/performance.md``.

The page has a place for each area, from ``<!-- bench AREA -->`` to ``<!-- end -->``. What is
between these lines is replaced. A line below each table says on which machine it was measured.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.measure import Row, table
from benchmarks.plots import write_plots

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
CHARTS = "images/benchmarks"
"""Where the charts are, relative to the page."""
QUIET = 0.1
"""Part of the cores that other programs may use on a quiet machine."""


def check(page: Path, areas: Iterable[str]) -> None:
    """Raises ``ValueError`` if the page has no place for one of the areas."""
    text = page.read_text(encoding="utf-8")
    for area in areas:
        _replace(text, area, "")


def update(page: Path, area: str, rows: Sequence[Row], footer: str) -> None:
    """Replace the table and the chart of an area. Raises ``ValueError``, and changes nothing, if
    the page has no place for it."""
    parts = [table(rows), "", footer]
    if any(row.is_drawn for row in rows):
        parts.insert(0, f"![chart of the table below]({CHARTS}/{area}.svg)\n")
    text = _replace(page.read_text(encoding="utf-8"), area, "\n".join(parts))
    write_plots({area: rows}, page.parent / CHARTS)
    page.write_text(text, encoding="utf-8")


def footer(failed: Sequence[str], load: float) -> str:
    """When and where an area was measured, and what is missing. ``load``: the part of the cores
    that other programs used."""
    day = datetime.datetime.now(datetime.UTC).date()
    node = shutil.which("node")
    version = subprocess.check_output([node, "--version"], text=True).strip() if node else "none"
    text = (
        f"Measured on {day} with {len(os.sched_getaffinity(0))} cores ({platform.machine()}),"
        f" {platform.system()}, Python {platform.python_version()}, Node {version.lstrip('v')}"
    )
    text += (
        f", **under load**: other programs used {load:.0%} of the cores." * (load > QUIET) or "."
    )
    return f"{text} Failed, and not in the table: {', '.join(failed)}." if failed else text


def _replace(text: str, name: str, content: str) -> str:
    place = re.compile(rf"(<!-- bench {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    found = place.search(text)
    if found is None:
        raise ValueError(f"no place for {name}: it needs <!-- bench {name} --> and <!-- end -->")
    return f"{text[: found.end(1)]}{content}\n{text[found.start(2) :]}"
