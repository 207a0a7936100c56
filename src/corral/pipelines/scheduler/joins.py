"""Where the branches of a parallel node join, and which nodes lie before, in and behind them.

The branches join at the fan-in that they reach; without one, at the nearest node that all of them
come to on every way (their immediate common post-dominator); without such a node, at the first one
that all of them can reach. Edges that lead back (loops), ways that end without reaching the exit,
and edges to the exit do not count as other ways: there a branch ends or starts again. A branch
that ends everywhere by itself joins nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import NamedTuple

from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph


class Section(NamedTuple):
    """The part of a graph in which the branches of a parallel node run."""

    join: str
    """Where the run continues after the branches; empty: nowhere."""
    behind: frozenset[str]
    """The join and all that follows it, for the parallel nodes around it too. Branches end
    there."""
    before: frozenset[str]
    """The parallel node and the nodes that lead to it from outside its branches."""


class Joins:
    """The joins of one graph. Computed once; the cost is that of the graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._forward: dict[str, list[str]] = {}
        """The edges of each node, without those that lead back and those to an exit."""
        order = self._order_nodes()
        self._position = {name: -number for number, name in enumerate(order)}
        self._next: dict[str, str] = {}
        """For nodes that can reach an exit: the nearest node on all ways from there; or empty."""
        for name in order:
            following = [each for each in self._forward[name] if each in self._next]
            if following or any(self._is_exit(edge.target) for edge in graph.edges_from(name)):
                self._next[name] = reduce(self._meet, following) if following else ""
        self._inner: dict[str, str] = {}

    def section(self, parallel: str, heads: Iterable[str], outer: frozenset[str]) -> Section:
        """``heads`` are the first nodes of the branches, ``outer`` is what lies behind the parallel
        nodes around this one."""
        heads = [head for head in heads if head in self._forward[parallel]]
        join = self._find(heads, outer)
        behind = {join} | _reach([join], self._followers) if join else set[str]()
        behind |= outer
        inside = _reach(heads, lambda name: () if name in behind else self._followers(name))
        inside |= behind | {*heads}
        before = _reach([parallel], lambda name: self._leading(name, inside)) | {parallel}
        return Section(join, frozenset(behind), frozenset(before))

    def _find(self, heads: list[str], outer: frozenset[str] = frozenset()) -> str:
        heads = [head for head in dict.fromkeys(heads) if head in self._next]
        if not heads:
            return ""
        chain = self._chain(heads, outer)
        return (
            self._first_fan_in(chain)
            or self._reached_fan_in(heads, outer)
            or next(iter(chain), "")
            or self._first_common(heads, outer)
        )

    def _chain(self, heads: list[str], outer: frozenset[str]) -> list[str]:
        """The nodes on all ways of all these branches, the nearest first."""
        name = reduce(self._meet, heads) if len(heads) > 1 else self._next[heads[0]]
        chain: list[str] = []
        while name and name not in outer:
            chain.append(name)
            name = self._next[name]
        return chain

    def _first_fan_in(self, chain: list[str]) -> str:
        """The first fan-in that does not belong to another parallel node of this chain."""
        place = {name: number for number, name in enumerate(chain)}
        number = 0
        while number < len(chain):
            node = self._graph.nodes[chain[number]]
            if node.kind == node_kinds.FAN_IN.name:
                return node.id
            number += 1
            if node.kind == node_kinds.PARALLEL.name:
                if node.id not in self._inner:
                    self._inner[node.id] = self._find(self._forward[node.id])
                number = max(number, place.get(self._inner[node.id], -1))
                if number < len(chain) and chain[number] == self._inner[node.id]:
                    number += self._graph.nodes[chain[number]].kind == node_kinds.FAN_IN.name
        return ""

    def _reached_fan_in(self, heads: list[str], outer: frozenset[str]) -> str:
        """The fan-in that most of the branches can reach, then the nearest, then by id."""
        reached: dict[str, list[int]] = {}
        for head in heads:
            for fan_in, distance in fan_ins(self._graph, head).items():
                if fan_in not in outer:
                    reached.setdefault(fan_in, []).append(distance)
        return min(
            reached, key=lambda name: (-len(reached[name]), sum(reached[name]), name), default=""
        )

    def _first_common(self, heads: list[str], outer: frozenset[str]) -> str:
        if len(heads) == 1:
            return ""
        common = set.intersection(*({head} | _reach([head], self._followers) for head in heads))
        return min(common - outer, key=self._position.__getitem__, default="")

    def _meet(self, one: str, other: str) -> str:
        """The nearest node on all ways from both."""
        while one != other:
            if not one or not other:
                return ""
            if self._position[one] < self._position[other]:
                one = self._next[one]
            else:
                other = self._next[other]
        return one

    def _followers(self, name: str) -> list[str]:
        return self._forward.get(name, [])

    def _leading(self, name: str, inside: set[str]) -> list[str]:
        """The nodes with an edge to this one, without those inside."""
        sources = (edge.source for edge in self._graph.edges_to(name))
        return [source for source in sources if source not in inside]

    def _is_exit(self, name: str) -> bool:
        node = self._graph.nodes.get(name)
        return node is not None and node.kind == node_kinds.EXIT.name

    def _order_nodes(self) -> list[str]:
        """All nodes, each after those that follow it; fills ``_forward``. Depth first, without
        recursion: a graph may have thousands of nodes in a row."""
        nodes, order, entered = self._graph.nodes, list[str](), set[str]()
        done: set[str] = set()
        starts = [node.id for node in self._graph.of_kind(node_kinds.START.name)]
        for root in (*starts, *nodes):
            stack = [root]
            while stack:
                name = stack[-1]
                if name not in entered:
                    entered.add(name)
                    targets = dict.fromkeys(edge.target for edge in self._graph.edges_from(name))
                    self._forward[name] = [
                        each for each in targets if each in nodes and not self._is_exit(each)
                    ]
                    stack += reversed([each for each in self._forward[name] if each not in entered])
                    continue
                stack.pop()
                if name not in done:
                    # What was entered and is not done lies on the way here: the edge leads back.
                    self._forward[name] = [each for each in self._forward[name] if each in done]
                    done.add(name)
                    order.append(name)
        return order


def _reach(begin: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """The nodes after these."""
    reached: set[str] = set()
    todo = [*begin]
    while todo:
        for name in following(todo.pop()):
            if name not in reached:
                reached.add(name)
                todo.append(name)
    return reached


def fan_ins(graph: Graph, head: str) -> dict[str, int]:
    """The fan-ins that end a branch which starts at this node, and their distances."""
    distances: dict[str, int] = {}
    visited = {(head, 0)}
    frontier = [(head, 0)]
    distance = 0
    max_depth = sum(1 for _ in graph.of_kind(node_kinds.PARALLEL.name))
    while frontier:
        reached: list[tuple[str, int]] = []
        for name, depth in frontier:
            node = graph.nodes.get(name)
            if node is None:
                continue
            inner = depth  # how many parallel nodes are open after this one
            if node.kind == node_kinds.FAN_IN.name:
                inner = depth - 1
            elif node.kind == node_kinds.PARALLEL.name:
                inner = min(depth + 1, max_depth)
            if inner < 0:  # the fan-in of the branch itself
                distances.setdefault(name, distance)
                continue
            for edge in graph.edges_from(name):
                if (edge.target, inner) not in visited:
                    visited.add((edge.target, inner))
                    reached.append((edge.target, inner))
        frontier = reached
        distance += 1
    return distances
