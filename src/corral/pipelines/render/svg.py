"""Draws a pipeline as SVG, without Graphviz."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from itertools import pairwise
from unicodedata import east_asian_width

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph, Node
from corral.pipelines.render.layout import Layout, Point, arrange

HEIGHT = 44.0
"""The height of a node."""
LETTER = 7.4
"""The average width of a letter, rounded up."""
LONGEST = 32
"""Characters of a text."""
UPWARD_OFFSET = 16.0
"""The distance between an edge that leads up and one that leads down."""
COLORS = {
    "success": "#d7f5dd",
    "partial_success": "#eef5c6",
    "fail": "#fbd7d5",
    "retry": "#fde8c3",
    "skipped": "#e6e6e6",
    "running": "#d6e8fd",
    "waiting": "#f0dcfb",
}
"""Status of a node -> its color."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = """
text { font: 13px system-ui, sans-serif; text-anchor: middle; dominant-baseline: central; }
.node { fill: #fff; stroke: #333; stroke-width: 1.3; }
.edge { fill: none; stroke: #666; stroke-width: 1.2; }
.label { font-size: 11px; fill: #444; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
"""


def as_svg(
    graph: Graph, statuses: Mapping[str, str] | None = None, *, embedded: bool = False
) -> str:
    """The drawing. ``statuses`` (node -> status of its outcome, ``running`` or ``waiting``) sets
    the colors.

    With ``embedded`` it has no colors and no styles, for a page that has its own: nodes are groups
    with ``data-node`` (the id), edges and their labels groups with ``data-edge`` (the number of the
    edge in the graph, from 0).

    ::

        svg = pipelines.as_svg(pipelines.load("review.dot"), {"review": "success"})
    """
    widths = {node.id: _width(node) for node in graph.nodes.values()}
    layout = arrange(graph, widths)
    title = escape(_clean(graph.name))
    width, height = f"{layout.width:.0f}", f"{layout.height:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" role="img">',
            f"<title>{title}</title>",
            *(() if embedded else (f"<style>{_STYLE}</style>",)),
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
            ' markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>',
            *_edges(graph, layout, widths, embedded=embedded),
            *_nodes(graph, layout, widths, None if embedded else statuses or {}),
            "</svg>\n",
        ]
    )


def _nodes(
    graph: Graph, layout: Layout, widths: Mapping[str, float], statuses: Mapping[str, str] | None
) -> Iterator[str]:
    name = "data-node" if statuses is None else "id"
    for node in graph.nodes.values():
        middle = layout.positions[node.id]
        color = COLORS.get((statuses or {}).get(node.id, ""))
        fill = f' style="fill:{color}"' if color else ""
        outline = OUTLINES.get(node_kinds.find(node.kind).drawn_as, _rounded)(
            middle, widths[node.id] / 2, HEIGHT / 2
        )
        shapes = "".join(f'<path class="node"{fill} d="{path}"/>' for path in outline)
        hint = _clean(f"{node.id}: {node.kind}\n{node.text('prompt') or node.text('tool_command')}")
        yield (
            f'<g {name}="{escape(_clean(node.id))}"><title>{escape(hint.strip())}</title>{shapes}'
            f'<text x="{middle.x:.1f}" y="{middle.y:.1f}">{escape(_short(node.label))}</text></g>'
        )


def _edges(
    graph: Graph, layout: Layout, widths: Mapping[str, float], *, embedded: bool
) -> Iterator[str]:
    for number, (edge, points) in enumerate(zip(graph.edges, layout.paths, strict=True)):
        if edge.source == edge.target:
            path, middle = _loop(points[0], widths[edge.source] / 2)
        else:
            path, middle = _curve(points)
        dashes = ' stroke-dasharray="5 4"' if edge.restarts else ""
        line = f'<path class="edge"{dashes} d="{path}" marker-end="url(#tip)"/>'
        if text := _short(edge.label or edge.condition):
            place = f'x="{middle.x:.1f}" y="{middle.y:.1f}"'
            line += f'\n<text class="label" {place}>{escape(text)}</text>'
        yield f'<g data-edge="{number}">{line}</g>' if embedded else line


def _curve(path: list[Point]) -> tuple[str, Point]:
    """The curve between the borders of two nodes, vertical at both ends, and the place of its
    label."""
    is_down = path[-1].y > path[0].y
    border, side = (HEIGHT / 2, 0.0) if is_down else (-HEIGHT / 2, UPWARD_OFFSET)
    first = Point(path[0].x + side, path[0].y + border)
    last = Point(path[-1].x + side, path[-1].y - border)
    points = [first, *path[1:-1], last]
    parts = [f"M{first.x:.1f} {first.y:.1f}"]
    for one, two in pairwise(points):
        half = (one.y + two.y) / 2
        parts.append(f"C{one.x:.1f} {half:.1f} {two.x:.1f} {half:.1f} {two.x:.1f} {two.y:.1f}")
    middle = len(points) // 2
    if len(points) % 2:
        return "".join(parts), points[middle]
    one, two = points[middle - 1], points[middle]
    share = 0.62  # nearer to the target, where the edges of one node are farther apart
    label = Point(one.x + (two.x - one.x) * share + side, one.y + (two.y - one.y) * share)
    return "".join(parts), label


def _loop(middle: Point, half: float) -> tuple[str, Point]:
    x, y, out = middle.x + half, middle.y, middle.x + half + 34
    path = f"M{x:.1f} {y - 8:.1f}C{out:.1f} {y - 26:.1f} {out:.1f} {y + 26:.1f} {x:.1f} {y + 8:.1f}"
    return path, Point(out, y)


def _path(*points: tuple[float, float]) -> str:
    return "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y in points) + "z"


def _rounded(m: Point, w: float, h: float) -> list[str]:
    r = 6
    return [
        f"M{m.x - w + r:.1f} {m.y - h:.1f}h{2 * (w - r):.1f}q{r} 0 {r} {r}v{2 * (h - r):.1f}"
        f"q0 {r} -{r} {r}h-{2 * (w - r):.1f}q-{r} 0 -{r} -{r}v-{2 * (h - r):.1f}q0 -{r} {r} -{r}z"
    ]


def _square(m: Point, w: float, h: float) -> list[str]:
    outer = _path((m.x - w, m.y - h), (m.x + w, m.y - h), (m.x + w, m.y + h), (m.x - w, m.y + h))
    return [outer, *(_rounded(m, w - 4, h - 4))]


def _diamond(m: Point, w: float, h: float) -> list[str]:
    return [_path((m.x - w, m.y), (m.x, m.y - h - 6), (m.x + w, m.y), (m.x, m.y + h + 6))]


def _hexagon(m: Point, w: float, h: float) -> list[str]:
    c = 14
    return [
        _path(
            (m.x - w, m.y), (m.x - w + c, m.y - h), (m.x + w - c, m.y - h),
            (m.x + w, m.y), (m.x + w - c, m.y + h), (m.x - w + c, m.y + h),
        )
    ]  # fmt: skip


def _component(m: Point, w: float, h: float) -> list[str]:
    tab = f"M{m.x - w - 5:.1f} {m.y - 10:.1f}h10v6h-10zm0 14h10v6h-10z"
    return [*_rounded(m, w, h), tab]


def _octagon(m: Point, w: float, h: float) -> list[str]:
    c = 12
    return [
        _path(
            (m.x - w, m.y - h + c), (m.x - w + c, m.y - h), (m.x + w - c, m.y - h),
            (m.x + w, m.y - h + c), (m.x + w, m.y + h - c), (m.x + w - c, m.y + h),
            (m.x - w + c, m.y + h), (m.x - w, m.y + h - c),
        )
    ]  # fmt: skip


def _parallelogram(m: Point, w: float, h: float) -> list[str]:
    c = 12
    return [
        _path(
            (m.x - w + c, m.y - h), (m.x + w, m.y - h), (m.x + w - c, m.y + h), (m.x - w, m.y + h)
        )
    ]


def _house(m: Point, w: float, h: float) -> list[str]:
    return [
        _path(
            (m.x, m.y - h - 8), (m.x + w, m.y - h + 8), (m.x + w, m.y + h),
            (m.x - w, m.y + h), (m.x - w, m.y - h + 8),
        )
    ]  # fmt: skip


OUTLINES: dict[str, Callable[[Point, float, float], list[str]]] = {
    "Mdiamond": _diamond,
    "Msquare": _square,
    "hexagon": _hexagon,
    "diamond": _diamond,
    "component": _component,
    "tripleoctagon": _octagon,
    "parallelogram": _parallelogram,
    "house": _house,
}
"""DOT shape -> its outline. Other shapes are boxes."""
_WIDE = ("Mdiamond", "diamond", "hexagon")
"""Shapes with less room for text than their width."""


def _width(node: Node) -> float:
    text = _short(node.label)
    letters = sum(2 if east_asian_width(c) in "WF" else 1 for c in text)
    padding = 56 if node_kinds.find(node.kind).drawn_as in _WIDE else 32
    return max(64.0, letters * LETTER + padding)


def _short(text: str) -> str:
    text = " ".join(_clean(text).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _clean(text: str) -> str:
    """The text without characters that XML does not allow."""
    return _NO_XML.sub("\ufffd", text)
