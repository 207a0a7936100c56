"""Draws a pipeline: as SVG, without Graphviz, as text for a terminal, and as DOT text.

The first two use the usual layered layout, from the start downwards. Edges that close a loop are
reversed. Every node is one layer below the lowest node that leads to it. An edge over several
layers gets a bend in each. A few sweeps then move neighbors near each other. The same graph always
gives the same drawing, in time linear in its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from html import escape
from itertools import pairwise
from typing import NamedTuple
from unicodedata import east_asian_width

from corral._pipelines import node_kinds
from corral._pipelines.dot_parser import IDENTIFIER, KEYWORDS
from corral._pipelines.graph import Graph, Node, Value

SWEEPS = 4
MAX_BENDS = 20_000
"""If there are more, long edges are straight: details of such a drawing do not matter."""
GAP = 40.0
LAYER = 96.0
BEND = 12.0
HEIGHT = 44.0
"""The height of a node."""
LETTER = 7.4
"""The average width of a letter, rounded up."""
LONGEST = 32
"""Characters of a text."""
UPWARD_OFFSET = 16.0
"""The distance between an edge that leads up and one that leads down."""
NO_PATH = "no path"
"""The status of a node that no path reaches (``pipelines.paths``)."""
COLORS = {
    "success": "#d7f5dd",
    "partial_success": "#eef5c6",
    "fail": "#fbd7d5",
    "retry": "#fde8c3",
    "skipped": "#e6e6e6",
    "running": "#d6e8fd",
    "waiting": "#f0dcfb",
    NO_PATH: "#fbd7d5",
}
"""Status of a node -> its color."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = """
text { font: 13px system-ui, sans-serif; text-anchor: middle; dominant-baseline: central; }
.node { fill: #fff; stroke: #333; stroke-width: 1.3; }
.edge { fill: none; stroke: #666; stroke-width: 1.2; }
.label { font-size: 11px; fill: #444; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
"""
_PLAIN_KINDS = (node_kinds.START.name, node_kinds.EXIT.name, node_kinds.CODERGEN.name)
"""Kinds that the symbol identifies."""


def as_text(graph: Graph, statuses: Mapping[str, str] | None = None) -> str:
    """One paragraph per node, from the start on, with the target of each edge. ``↑`` marks edges
    that lead back.

    ::

        print(pipelines.as_text(pipelines.load("review.dot")))
    """
    positions = arrange(graph, {}).positions
    order = sorted(
        graph.nodes.values(), key=lambda node: (positions[node.id].y, positions[node.id].x)
    )
    rank = {node.id: number for number, node in enumerate(order)}
    lines = [graph.name, *([f"goal: {_line(graph.goal)}"] if graph.goal else []), ""]
    for node in order:
        label = "" if node.label == node.id else f"  {_line(node.label)}"
        kind = "" if node.kind in _PLAIN_KINDS else f"  ({node.kind})"
        status = (statuses or {}).get(node.id)
        shown_status = f"  [{status}]" if status else ""
        symbol = node_kinds.find(node.kind).symbol
        lines.append(f"{symbol} {_line(node.id)}{label}{kind}{shown_status}")
        edges = graph.edges_from(node.id)
        for number, edge in enumerate(edges, 1):
            corner = "└" if number == len(edges) else "├"
            label = f" {_line(text)} ─" if (text := edge.label or edge.condition) else ""
            back = " ↑" if rank.get(edge.target, 0) <= rank[node.id] else ""
            lines.append(f"  {corner}─{label}▶ {_line(edge.target)}{back}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _line(text: str) -> str:
    """The text on one line, without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    short = " ".join(plain.split())
    return short if len(short) <= 100 else short[:99] + "…"


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
    graph: Graph,
    layout: GraphLayout,
    widths: Mapping[str, float],
    statuses: Mapping[str, str] | None,
) -> Iterator[str]:
    name = "data-node" if statuses is None else "id"
    for node in graph.nodes.values():
        middle = layout.positions[node.id]
        color = COLORS.get((statuses or {}).get(node.id, ""))
        fill = f' style="fill:{color}"' if color else ""
        drawn_as = node_kinds.find(node.kind).drawn_as
        outline = _outline(drawn_as, middle, widths[node.id] / 2, HEIGHT / 2)
        shapes = "".join(f'<path class="node"{fill} d="{path}"/>' for path in outline)
        hint = _clean(f"{node.id}: {node.kind}\n{node.text('prompt') or node.text('tool_command')}")
        yield (
            f'<g {name}="{escape(_clean(node.id))}"><title>{escape(hint.strip())}</title>{shapes}'
            f'<text x="{middle.x:.1f}" y="{middle.y:.1f}">{escape(_short(node.label))}</text></g>'
        )


def _edges(
    graph: Graph, layout: GraphLayout, widths: Mapping[str, float], *, embedded: bool
) -> Iterator[str]:
    for number, (edge, points) in enumerate(zip(graph.edges, layout.paths, strict=True)):
        if edge.source == edge.target:
            x, y = points[0].x + widths[edge.source] / 2, points[0].y
            middle = Point(x + 34, y)
            path = (
                f"M{x:.1f} {y - 8:.1f}C{middle.x:.1f} {y - 26:.1f} {middle.x:.1f} {y + 26:.1f}"
                f" {x:.1f} {y + 8:.1f}"
            )
        else:
            path, middle = _curve(points)
        dashes = ' stroke-dasharray="5 4"' if edge.restarts else ""
        line = f'<path class="edge"{dashes} d="{path}" marker-end="url(#tip)"/>'
        if text := _short(edge.label or edge.condition):
            position = f'x="{middle.x:.1f}" y="{middle.y:.1f}"'
            line += f'\n<text class="label" {position}>{escape(text)}</text>'
        yield f'<g data-edge="{number}">{line}</g>' if embedded else line


def _curve(path: list[Point]) -> tuple[str, Point]:
    """The curve between the borders of two nodes, vertical at both ends, and the position of its
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


def _outline(shape: str, middle: Point, w: float, h: float) -> list[str]:
    """The paths of a node with this DOT shape, half of whose size is ``w`` and ``h``."""
    if shape not in POLYGONS:
        box = _rounded(middle, w, h)
        if shape != "component":
            return [box]
        tabs = f"M{middle.x - w - 5:.1f} {middle.y - 10:.1f}h10v6h-10zm0 14h10v6h-10z"
        return [box, tabs]
    corners = [
        f"{middle.x + x * w + more_x:.1f} {middle.y + y * h + more_y:.1f}"
        for x, more_x, y, more_y in POLYGONS[shape]
    ]
    polygon = f"M{' '.join(corners)}z"
    return [polygon, _rounded(middle, w - 4, h - 4)] if shape == "Msquare" else [polygon]


def _rounded(m: Point, w: float, h: float) -> str:
    r = 6
    return (
        f"M{m.x - w + r:.1f} {m.y - h:.1f}h{2 * (w - r):.1f}q{r} 0 {r} {r}v{2 * (h - r):.1f}"
        f"q0 {r} -{r} {r}h-{2 * (w - r):.1f}q-{r} 0 -{r} -{r}v-{2 * (h - r):.1f}q0 -{r} {r} -{r}z"
    )


_DIAMOND = ((-1, 0, 0, 0), (0, 0, -1, -6), (1, 0, 0, 0), (0, 0, 1, 6))
POLYGONS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "Mdiamond": _DIAMOND,
    "diamond": _DIAMOND,
    "Msquare": ((-1, 0, -1, 0), (1, 0, -1, 0), (1, 0, 1, 0), (-1, 0, 1, 0)),
    "hexagon": (
        (-1, 0, 0, 0), (-1, 14, -1, 0), (1, -14, -1, 0),
        (1, 0, 0, 0), (1, -14, 1, 0), (-1, 14, 1, 0),
    ),
    "tripleoctagon": (
        (-1, 0, -1, 12), (-1, 12, -1, 0), (1, -12, -1, 0), (1, 0, -1, 12),
        (1, 0, 1, -12), (1, -12, 1, 0), (-1, 12, 1, 0), (-1, 0, 1, -12),
    ),
    "parallelogram": ((-1, 12, -1, 0), (1, 0, -1, 0), (1, -12, 1, 0), (-1, 0, 1, 0)),
    "house": ((0, 0, -1, -8), (1, 0, -1, 8), (1, 0, 1, 0), (-1, 0, 1, 0), (-1, 0, -1, 8)),
}  # fmt: skip
"""DOT shape -> its corners. A corner is half widths and pixels to the right of the middle of the
node, half heights and pixels below it. Other shapes are boxes."""
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


# The layout.


class Point(NamedTuple):
    x: float
    y: float


class GraphLayout(NamedTuple):
    positions: dict[str, Point]
    """The middle of each node."""
    paths: list[list[Point]]
    """The path of each edge of the graph, in order: source, bends, target."""
    width: float
    height: float


def arrange(graph: Graph, widths: Mapping[str, float]) -> GraphLayout:
    """The layout of a graph. ``widths`` are the widths of the nodes."""
    order = list(graph.nodes)
    number = {name: index for index, name in enumerate(order)}
    ends = [(number[edge.source], number[edge.target]) for edge in graph.edges]
    starts = [number[node.id] for node in graph.of_kind(node_kinds.START.name)]
    forward = _forward(len(order), ends, starts)
    layer_of = _layers(len(order), [pair for pair in forward if pair is not None])
    chains = _chains(forward, layer_of)
    bends = len(layer_of) - len(order)
    sizes = [widths.get(name, 0.0) for name in order] + [BEND] * bends
    links = [link for chain in chains for link in pairwise(chain)]
    x = _columns(_ordered(layer_of, links), links, sizes)
    points = [Point(x[index], (layer + 0.5) * LAYER) for index, layer in enumerate(layer_of)]
    paths: list[list[Point]] = []
    for (source, target), chain in zip(ends, chains, strict=True):
        # A chain leads down, whatever the direction of its edge is; a loop has no chain.
        path = chain or [source, target]
        paths.append([points[index] for index in (path if path[0] == source else path[::-1])])
    right = max((x[index] + sizes[index] / 2 for index in range(len(x))), default=0.0)
    positions = {name: points[index] for index, name in enumerate(order)}
    return GraphLayout(positions, paths, right + GAP, max(layer_of, default=0) * LAYER + LAYER)


def _chains(forward: list[tuple[int, int] | None], layer_of: list[int]) -> list[list[int]]:
    """The nodes of each edge from top to bottom, with a new node for each bend; empty: an edge from
    a node to itself. Adds the layers of the new nodes to ``layer_of``."""
    chains: list[list[int]] = []
    left = MAX_BENDS
    for pair in forward:
        if pair is None:
            chains.append([])
            continue
        top, bottom = pair
        between = range(layer_of[top] + 1, layer_of[bottom])
        if len(between) > left:
            between = range(0)
        left -= len(between)
        bends = range(len(layer_of), len(layer_of) + len(between))
        layer_of.extend(between)
        chains.append([top, *bends, bottom])
    return chains


def _forward(
    count: int, ends: list[tuple[int, int]], starts: list[int]
) -> list[tuple[int, int] | None]:
    """Each edge from its upper to its lower node; None: an edge from a node to itself."""
    out: list[list[int]] = [[] for _ in range(count)]
    for index, (source, _) in enumerate(ends):
        out[source].append(index)
    state = [0] * count  # 1: on the stack, 2: done
    reversed_edges: set[int] = set()
    for root in (*starts, *range(count)):
        if state[root]:
            continue
        state[root] = 1
        stack = [(root, iter(out[root]))]
        while stack:
            node, rest = stack[-1]
            edge = next(rest, None)
            if edge is None:
                state[node] = 2
                stack.pop()
                continue
            target = ends[edge][1]
            if state[target] == 1:
                reversed_edges.add(edge)
            elif state[target] == 0:
                state[target] = 1
                stack.append((target, iter(out[target])))
    return [
        None
        if source == target
        else ((target, source) if index in reversed_edges else (source, target))
        for index, (source, target) in enumerate(ends)
    ]


def _layers(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    below: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for top, bottom in pairs:
        below[top].append(bottom)
        waiting[bottom] += 1
    layers = [0] * count
    todo = [node for node in range(count) if not waiting[node]]
    for node in todo:  # the list grows in the loop
        for lower in below[node]:
            layers[lower] = max(layers[lower], layers[node] + 1)
            waiting[lower] -= 1
            if not waiting[lower]:
                todo.append(lower)
    return layers


def _ordered(layer_of: list[int], links: list[tuple[int, int]]) -> list[list[int]]:
    """The nodes of each layer from left to right, with few crossings."""
    rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for node, layer in enumerate(layer_of):
        rows[layer].append(node)
    above, below = _neighbors(len(layer_of), links)
    position = [0.0] * len(layer_of)
    for row in rows:
        for index, node in enumerate(row):
            position[node] = index
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            row.sort(key=lambda node: _mean(position, near[node], position[node]))
            for index, node in enumerate(row):
                position[node] = index
    return rows


def _columns(
    rows: list[list[int]], links: list[tuple[int, int]], sizes: list[float]
) -> list[float]:
    """The x of the middle of each node, near its neighbors."""
    above, below = _neighbors(len(sizes), links)
    x = [0.0] * len(sizes)
    for row in rows:
        _pack(row, [0.0] * len(row), x, sizes)
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            _pack(row, [_mean(x, near[node], x[node]) for node in row], x, sizes)
    left = min((x[node] - sizes[node] / 2 for node in range(len(x))), default=0.0)
    return [value - left + GAP for value in x]


def _pack(row: list[int], wanted: list[float], x: list[float], sizes: list[float]) -> None:
    """Set ``x`` of each node of a row, as near to ``wanted`` as possible without overlap."""
    edge = float("-inf")
    for node, target in zip(row, wanted, strict=True):
        x[node] = max(target, edge + sizes[node] / 2)
        edge = x[node] + sizes[node] / 2 + GAP
    shift = sum(x[node] - target for node, target in zip(row, wanted, strict=True))
    shift /= max(1, len(row))
    for node in row:
        x[node] -= shift


def _neighbors(count: int, links: list[tuple[int, int]]) -> tuple[list[list[int]], ...]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for top, bottom in links:
        below[top].append(bottom)
        above[bottom].append(top)
    return above, below


def _mean(positions: list[float], near: list[int], otherwise: float) -> float:
    return sum(positions[node] for node in near) / len(near) if near else otherwise


# DOT.


def as_dot(graph: Graph, statuses: Mapping[str, str] | None = None) -> str:
    """A text that parses to this graph and that Graphviz can read: names with dots are quoted.
    Subgraphs are not restored; the classes that they set are written as ``class``. ``statuses``
    (node -> text) are written beside the nodes.

    ::

        print(pipelines.as_dot(pipelines.load("review.dot")))
    """
    lines = [f"digraph {_dot_name(graph.name)} {{"]
    lines += [f"  {_dot_attribute(key, value)};" for key, value in graph.attrs.items()]
    for node in graph.nodes.values():
        attrs = dict(node.attrs)
        if node.inherits_timeout and node.kind == node_kinds.WAIT_HUMAN.name:
            del attrs["timeout"]  # it has no effect; written here, it would have one
        if node.classes:
            attrs["class"] = ",".join(node.classes)
        if status := (statuses or {}).get(node.id):
            attrs |= {"xlabel": status}
        lines.append(f"  {_dot_name(node.id)}{_dot_block(attrs)};")
    lines += [
        f"  {_dot_name(edge.source)} -> {_dot_name(edge.target)}{_dot_block(edge.attrs)};"
        for edge in graph.edges
    ]
    return "\n".join([*lines, "}", ""])


def _dot_block(attrs: Mapping[str, Value]) -> str:
    inside = ", ".join(_dot_attribute(key, value) for key, value in attrs.items())
    return f" [{inside}]" if inside else ""


def _dot_attribute(key: str, value: Value) -> str:
    match value:
        case bool():
            shown = "true" if value else "false"
        case float() if math.isfinite(value):
            shown = f"{Decimal(repr(value)):f}"
            shown = shown if "." in shown else f"{shown}.0"
        case int():
            shown = str(value)
        case _:
            shown = _quoted(str(value))
    return f"{_dot_name(key)}={shown}"


def _dot_name(text: str) -> str:
    plain = IDENTIFIER.fullmatch(text) and text.lower() not in KEYWORDS
    return text if plain else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
