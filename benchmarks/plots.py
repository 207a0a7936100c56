"""The rows of a benchmark as a bar chart in SVG: corral, the limits and the peers.

Each row is a pair of bars in the unit of the row. The longer one has the full width, so the chart
shows ratios, as the table does. Rows without a ratio are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.measure import Row

WIDTH = 860
LABELS = 16
"""The left edge of all text."""
BARS = 400
"""The left edge of the bars."""
LENGTH = 230
"""The width of the longest bar of a pair; its figure is to the right of it."""
BAR = 13
ROW = 44
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
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #9198a1; }
  .corral { fill: #3fb98a; }
  .other { fill: #59636e; }
  .missed { fill: #f0795f; }
}"""


def write_plots(areas: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """One file for each area that has a ratio."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, rows in areas.items():
        if any(row.ratio for row in rows):
            file = folder / f"{name}.svg"
            file.write_text(plot(name, rows), encoding="utf-8")
            written.append(file)
    return written


def plot(title: str, rows: Sequence[Row]) -> str:
    pairs = [row for row in rows if row.ratio]
    height = HEAD + ROW * len(pairs) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LABELS}" y="24">{escape(title)}</text>',
        f'<text class="note" x="{BARS}" y="24">green: corral; gray: the limit or a peer;'
        " red: corral, a bar missed</text>",
    ]
    for number, row in enumerate(pairs):
        parts += _pair(row, HEAD + ROW * number)
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


def _bar(color: str, part: float, figure: str, top: int) -> list[str]:
    length = max(1.0, LENGTH * part)
    return [
        f'<rect class="{color}" x="{BARS}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>',
        f'<text class="note" x="{BARS + length + 6:.1f}" y="{top + 10}">{escape(figure)}</text>',
    ]


def _short(text: str) -> str:
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"
