"""The rows of a benchmark as a chart in SVG: corral, the limits and the peers.

A row with a ratio is a pair of bars in the unit of the row. The longer one has the full width, so
the chart shows ratios, as the table does. A row with points is a curve on two logarithmic axes:
linear growth is as steep as the gray line. Other rows are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path

from benchmarks.measure import Point, Row

WIDTH = 860
LABELS = 16
"""The left edge of all text."""
BARS = 400
"""The left edge of the bars."""
LENGTH = 230
"""The width of the longest bar of a pair; its figure is to the right of it."""
BAR = 13
ROW = 44
CURVE = 190
"""The height of a curve with its labels."""
AREA = 130
"""The height of its area."""
HEAD = 44
TEXT_WIDTH = 62
"""Characters of a description that fit to the left of the bars."""

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.note { fill: #59636e; font-size: 11px; }
.corral { fill: #1a7f5a; }
.other { fill: #afb8c1; }
.missed { fill: #c4432b; }
.line { fill: none; stroke: #1a7f5a; stroke-width: 2; }
.linear { fill: none; stroke: #afb8c1; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9198a1; }
  .corral { fill: #3fb98a; }
  .other { fill: #59636e; }
  .missed { fill: #f0795f; }
  .line { stroke: #3fb98a; }
  .linear { stroke: #59636e; }
}"""


def write_plots(areas: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """One file for each area that has a ratio."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, rows in areas.items():
        if any(row.is_drawn for row in rows):
            file = folder / f"{name}.svg"
            file.write_text(plot(name, rows), encoding="utf-8")
            written.append(file)
    return written


def plot(title: str, rows: Sequence[Row]) -> str:
    drawn = [row for row in rows if row.is_drawn]
    height = HEAD + sum(CURVE if row.points else ROW for row in drawn) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LABELS}" y="24">{escape(title)}</text>',
        f'<text class="note" x="{BARS}" y="24">green: corral; gray: the limit or a peer;'
        " red: corral, a bar missed</text>",
    ]
    top = HEAD
    for row in drawn:
        parts += _curve(row, top) if row.points else _pair(row, top)
        top += CURVE if row.points else ROW
    return "\n".join([*parts, "</svg>", ""])


def _pair(row: Row, top: int) -> list[str]:
    assert row.ratio
    # The ratio of a row is corral ÷ the other, unless its description says the opposite.
    share = 1 / row.ratio if "÷ corral" in row.what else row.ratio
    color = "missed" if row.bar is not None and not row.bar.met else "corral"
    _, _, _, ratio, bar, _ = row.cells()
    note = f"{ratio}, bar {bar}" if bar else ratio
    return [
        f'<text x="{LABELS}" y="{top + 11}">{escape(_short(row.what))}</text>',
        f'<text class="note" x="{LABELS}" y="{top + 26}">{escape(note)}</text>',
        *_bar(color, share / max(share, 1), row.corral, top),
        *_bar("other", 1 / max(share, 1), row.baseline, top + BAR + 3),
    ]


def _curve(row: Row, top: int) -> list[str]:
    points = row.points
    sizes = [log10(point.size) for point in points]
    costs = [log10(point.seconds) for point in points]
    # The line of linear growth ends at the last point, and is part of the area.
    first = costs[-1] - (sizes[-1] - sizes[0])
    low, high = min(*costs, first), max(costs)

    def place(size: float, cost: float) -> tuple[float, float]:
        across = (size - sizes[0]) / (sizes[-1] - sizes[0])
        return BARS + LENGTH * across, top + AREA - AREA * (cost - low) / ((high - low) or 1)

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)

    places = [place(size, cost) for size, cost in zip(sizes, costs, strict=True)]
    linear = [place(sizes[0], first), places[-1]]
    return [
        f'<text x="{LABELS}" y="{top + 11}">{escape(_short(row.what))}</text>',
        f'<text class="note" x="{LABELS}" y="{top + 26}">{escape(row.corral)}</text>',
        f'<polyline class="linear" points="{path(linear)}"/>',
        f'<polyline class="line" points="{path(places)}"/>',
        *(
            f'<circle class="corral" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
            f'<text class="note" x="{x - 8:.1f}" y="{top + AREA + 18}">{_size(point)}</text>'
            for point, (x, y) in zip(points, places, strict=True)
        ),
        *(
            f'<text class="note" x="{x}" y="{y + 4:.1f}">{_seconds(point)}</text>'
            for x, (_, y), point in (
                (BARS - 60, places[0], points[0]),
                (BARS + LENGTH + 12, places[-1], points[-1]),
            )
        ),
    ]


def _size(point: Point) -> str:
    return f"{point.size // 1000}k" if point.size >= 1000 else str(point.size)


def _seconds(point: Point) -> str:
    return f"{point.seconds * 1000:.3g} ms" if point.seconds < 1 else f"{point.seconds:.3g} s"


def _bar(color: str, part: float, figure: str, top: int) -> list[str]:
    length = max(1.0, LENGTH * part)
    return [
        f'<rect class="{color}" x="{BARS}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>',
        f'<text class="note" x="{BARS + length + 6:.1f}" y="{top + 10}">{escape(figure)}</text>',
    ]


def _short(text: str) -> str:
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"
