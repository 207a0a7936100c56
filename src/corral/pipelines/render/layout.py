"""The layout of a drawing: the positions of nodes and edges, in layers from the start downwards.

This is the usual layered layout. Edges that close a loop are reversed. Every node is one layer
below the lowest node that leads to it. An edge over several layers gets a bend in each. A few
sweeps then move neighbors near each other. The same graph always gives the same drawing, in time
linear in its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph

SWEEPS = 4
MAX_BENDS = 20_000
"""If there are more, long edges are straight: details of such a drawing do not matter."""
GAP = 40.0
LAYER = 96.0
BEND = 12.0


class Point(NamedTuple):
    x: float
    y: float


class Layout(NamedTuple):
    positions: dict[str, Point]
    """The middle of each node."""
    paths: list[list[Point]]
    """The path of each edge of the graph, in order: source, bends, target."""
    width: float
    height: float


def arrange(graph: Graph, widths: Mapping[str, float]) -> Layout:
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
    paths = [
        [points[index] for index in _oriented(chain, source, target)]
        for (source, target), chain in zip(ends, chains, strict=True)
    ]
    right = max((x[index] + sizes[index] / 2 for index in range(len(x))), default=0.0)
    positions = {name: points[index] for index, name in enumerate(order)}
    return Layout(positions, paths, right + GAP, max(layer_of, default=0) * LAYER + LAYER)


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


def _oriented(chain: list[int], source: int, target: int) -> list[int]:
    """A chain in the direction of its edge."""
    if not chain:
        return [source, target]
    return chain if chain[0] == source else chain[::-1]


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
