"""Where the nodes of a drawing stand: in layers, from the start downwards.

The way it is usually done: edges that close a loop are turned round, every node stands a layer
below the last that leads to it, edges over several layers get a bend in each, then a few
sweeps put neighbours near each other. The same graph always gives the same drawing, in time
that grows with its size alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph

SWEEPS = 4
MOST_BENDS = 20_000
"""Beyond that, long edges are straight: nobody looks at such a drawing closely."""
GAP = 40.0
LAYER = 96.0
BEND = 12.0


class Point(NamedTuple):
    x: float
    y: float


class Layout(NamedTuple):
    places: dict[str, Point]
    """The middle of each node."""
    ways: list[list[Point]]
    """Of each edge, as in the graph: from its source over its bends to its target."""
    width: float
    height: float


def arrange(graph: Graph, widths: Mapping[str, float]) -> Layout:
    """``widths`` are those of the nodes."""
    order = list(graph.nodes)
    number = {name: index for index, name in enumerate(order)}
    ends = [(number[edge.source], number[edge.target]) for edge in graph.edges]
    starts = [number[node.id] for node in graph.of_kind(node_kinds.START.name)]
    forward = _forward(len(order), ends, starts)
    layer_of = _layers(len(order), [pair for pair in forward if pair is not None])
    wide = [widths.get(name, 0.0) for name in order]
    links: list[tuple[int, int]] = []
    chains: list[list[int]] = []
    room = MOST_BENDS
    for pair in forward:
        if pair is None:
            chains.append([])
            continue
        top, bottom = pair
        chain = [top]
        if 0 < layer_of[bottom] - layer_of[top] - 1 <= room:
            for layer in range(layer_of[top] + 1, layer_of[bottom]):
                chain.append(len(layer_of))
                layer_of.append(layer)
                wide.append(BEND)
                room -= 1
        chain.append(bottom)
        links += pairwise(chain)
        chains.append(chain)
    rows = _ordered(layer_of, links)
    x = _columns(rows, links, wide)
    points = [Point(x[index], (layer + 0.5) * LAYER) for index, layer in enumerate(layer_of)]
    ways = [
        [points[source], points[target]]
        if not chain
        else [points[index] for index in (chain if chain[0] == source else reversed(chain))]
        for (source, target), chain in zip(ends, chains, strict=True)
    ]
    right = max((x[index] + wide[index] / 2 for index in range(len(x))), default=0.0)
    places = {name: points[index] for index, name in enumerate(order)}
    return Layout(places, ways, right + GAP, max(layer_of, default=0) * LAYER + LAYER)


def _forward(
    count: int, ends: list[tuple[int, int]], starts: list[int]
) -> list[tuple[int, int] | None]:
    """Each edge from the upper to the lower node; None: one from a node to itself."""
    out: list[list[int]] = [[] for _ in range(count)]
    for index, (source, _) in enumerate(ends):
        out[source].append(index)
    state = [0] * count  # 1 while it is on the way, 2 once it is done
    turned: set[int] = set()
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
                turned.add(edge)
            elif state[target] == 0:
                state[target] = 1
                stack.append((target, iter(out[target])))
    return [
        None if source == target else (target, source) if index in turned else (source, target)
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
    for node in todo:  # it grows
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
    above, below = _neighbours(len(layer_of), links)
    place = [0.0] * len(layer_of)
    for row in rows:
        for index, node in enumerate(row):
            place[node] = index
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            row.sort(key=lambda node: _mean(place, near[node], place[node]))
            for index, node in enumerate(row):
                place[node] = index
    return rows


def _columns(rows: list[list[int]], links: list[tuple[int, int]], wide: list[float]) -> list[float]:
    """The middle of each node, from 0 on, near to what it is linked with."""
    above, below = _neighbours(len(wide), links)
    x = [0.0] * len(wide)
    for row in rows:
        _pack(row, [0.0] * len(row), x, wide)
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        for row in reversed(rows) if sweep % 2 else rows:
            _pack(row, [_mean(x, near[node], x[node]) for node in row], x, wide)
    left = min((x[node] - wide[node] / 2 for node in range(len(x))), default=0.0)
    return [value - left + GAP for value in x]


def _pack(row: list[int], wanted: list[float], x: list[float], wide: list[float]) -> None:
    """As near to where they want to be as there is room, none over another."""
    edge = float("-inf")
    for node, wish in zip(row, wanted, strict=True):
        x[node] = max(wish, edge + wide[node] / 2)
        edge = x[node] + wide[node] / 2 + GAP
    off = sum(x[node] - wish for node, wish in zip(row, wanted, strict=True)) / max(1, len(row))
    for node in row:
        x[node] -= off


def _neighbours(count: int, links: list[tuple[int, int]]) -> tuple[list[list[int]], ...]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for top, bottom in links:
        below[top].append(bottom)
        above[bottom].append(top)
    return above, below


def _mean(place: list[float], near: list[int], otherwise: float) -> float:
    return sum(place[node] for node in near) / len(near) if near else otherwise
