"""The tables and charts of ``docs/performance.md``.

The page has a place for each area, from ``<!-- bench AREA -->`` to ``<!-- end -->``, and one for
the machine, ``<!-- bench machine -->``. What is between these lines is replaced.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Row, table
from benchmarks.plots import write_plots

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
CHARTS = "images/benchmarks"
"""Where the charts are, relative to the page."""


def update(page: Path, areas: Mapping[str, Sequence[Row]]) -> None:
    """Replace the tables and charts of these areas. Raises ``ValueError``, and changes nothing, if
    the page has no place for one of them."""
    text = _replace(page.read_text(encoding="utf-8"), "machine", _machine())
    charts = page.parent / CHARTS
    for name, rows in areas.items():
        parts = [table(rows)]
        if any(row.is_drawn for row in rows):
            parts.insert(0, f"![chart of the table below]({CHARTS}/{name}.svg)\n")
        text = _replace(text, name, "\n".join(parts))
    write_plots(areas, charts)
    page.write_text(text, encoding="utf-8")


def _replace(text: str, name: str, content: str) -> str:
    place = re.compile(rf"(<!-- bench {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    found = place.search(text)
    if found is None:
        raise ValueError(f"no place for {name}: it needs <!-- bench {name} --> and <!-- end -->")
    return f"{text[: found.end(1)]}{content}\n{text[found.start(2) :]}"


def _machine() -> str:
    day = datetime.datetime.now(datetime.UTC).date()
    node = shutil.which("node")
    version = subprocess.check_output([node, "--version"], text=True).strip() if node else "none"
    return (
        f"Measured on {day} with {len(os.sched_getaffinity(0))} cores ({platform.machine()}),"
        f" {platform.system()}, Python {platform.python_version()}, Node {version.lstrip('v')}."
    )
