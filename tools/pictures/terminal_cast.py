"""A run of a program at a terminal as an animated picture: SVG whose text is text.

``record`` runs the program; ``picture`` draws its lines as they came, and repeats from the
beginning. A viewer that shows no animations, or whose user wants none, shows the end. ``lines_of``
reads the text of a picture.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from support.screens import Screen

COLUMNS, ROWS = 88, 40
COLORS = {
    "default": "#d6deeb", "cyan": "#7fdbca", "green": "#7ee787", "red": "#ff7b72",
    "brown": "#e3b341", "bright": "#ffffff",
}  # fmt: skip
"""By the names of pyte, which calls yellow brown."""
SIZE, ROW, LEFT, TOP = 14, 20, 18, 58
BEGIN, LEAST, MOST, END = 0.9, 0.12, 0.8, 6.0
"""Seconds: before the first line, between two lines, and after the last."""
_TEXT = "{http://www.w3.org/2000/svg}text"


class Span(NamedTuple):
    text: str
    color: str = "default"
    bold: bool = False


class Line(NamedTuple):
    at: float
    """Seconds from the start of the program."""
    spans: Sequence[Span]

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans).rstrip()


def record(argv: Sequence[str], cwd: Path, env: dict[str, str]) -> list[Line]:
    """Run a program that only adds lines, to its end."""
    times: list[float] = []
    begin = time.monotonic()
    screen = Screen(argv, cwd, {**env, "TERM": "xterm-256color"}, (ROWS, COLUMNS))
    while screen.read():
        times += [time.monotonic() - begin] * (len(screen.lines) - len(times))
    assert screen.process.wait() == 0, screen.text
    assert len(times) < ROWS, "more lines than the terminal has"
    return [Line(at, [Span(*span) for span in screen.spans(row)]) for row, at in enumerate(times)]


def picture(command: str, lines: Sequence[Line], title: str) -> str:
    """The lines below ``$ command``. Long waits are shortened."""
    shown, now, last = list[float](), BEGIN, 0.0
    for line in lines:
        now += min(max(line.at - last, LEAST), MOST) if shown else 0
        last = line.at
        shown.append(now)
    total = now + END
    width, height = LEFT * 2 + round(COLUMNS * SIZE * 0.603), TOP + ROW * (len(lines) + 1)
    keyframes = "\n".join(
        f"@keyframes l{row} {{ 0% {{ opacity: 0 }} {100 * at / total:.2f}% {{ opacity: 1 }} }}\n"
        f".l{row} {{ animation: l{row} {total:.1f}s step-end infinite }}"
        for row, at in enumerate(shown)
        if lines[row].text
    )
    prompt = [Span("$ ", "green", bold=True), Span(command, "bright")]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{escape(title)}">',
        "<style>",
        f"text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;"
        f" white-space: pre; fill: {COLORS['default']} }}",
        "@media (prefers-reduced-motion: no-preference) {",
        keyframes,
        "}",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#10161f"/>',
        *(
            f'<circle cx="{LEFT + 6 + 20 * number}" cy="20" r="6" fill="{color}"/>'
            for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
        _text(prompt, TOP, ""),
        *(
            _text(line.spans, TOP + ROW * (row + 1), f' class="l{row}"')
            for row, line in enumerate(lines)
            if line.text
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(spans: Sequence[Span], y: int, attributes: str) -> str:
    inner = "".join(_span(span) for span in spans)
    return f'<text x="{LEFT}" y="{y}" xml:space="preserve"{attributes}>{inner}</text>'


def _span(span: Span) -> str:
    bold = ' font-weight="bold"' * span.bold
    if span.color == "default" and not bold:
        return escape(span.text, quote=False)
    return f'<tspan fill="{COLORS[span.color]}"{bold}>{escape(span.text, quote=False)}</tspan>'


def lines_of(picture: str) -> list[str]:
    """The lines of text in a picture, without empty ones and the command."""
    texts = ElementTree.fromstring(picture).iter(_TEXT)
    return ["".join(text.itertext()).rstrip() for text in texts][1:]
