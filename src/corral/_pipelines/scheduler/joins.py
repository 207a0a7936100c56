"""Where the branches of a parallel node join, and which nodes lie before, in and behind them.

The branches join at the fan-in that they reach; without one, at the nearest node that all of them
come to on every way (their immediate common post-dominator); without such a node, at the first one
that all of them can reach. Edges that lead back (loops), edges for failures (``outcome=fail``),
ways that end without reaching the exit, and edges to the exit do not count as other ways: there a
branch starts again, or leaves the usual way and ends. A branch that ends everywhere by itself
joins nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, reduce
from typing import NamedTuple

from corral._pipelines import conditions, node_kinds
from corral._pipelines.graph import Edge, Graph, reach


class BranchSection(NamedTuple):
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
        self._exits = {node.id for node in graph.of_kind(node_kinds.EXIT.name)}
        self._starts = [node.id for node in graph.of_kind(node_kinds.START.name)]
        self._followers, ends = self._read_edges(graph.edges)
        """The nodes after each node, without exits."""
        self._number, self._forward = self._without_loops()
        self._all_ways = _Ways(self._followers, ends)
        usual: list[Edge] = []
        for edge in graph.edges:
            condition = conditions.edge_condition(graph, edge) if edge.attrs else None
            if condition is None or _may_succeed(condition.tree):
                usual.append(edge)
        self._usual, usual_ends = self._read_edges(usual)
        is_same = len(usual) == len(graph.edges)
        self._usual_ways = self._all_ways if is_same else _Ways(self._usual, usual_ends)
        self._ends = ends
        self._inner: dict[str, str] = {}

    @cached_property
    def _main_ways(self) -> _Ways:
        """Without loops. An edge to the exit beside other edges ends a branch early: here it is no
        other way."""
        onward = {
            name: [
                each
                for each in following
                if self._number[each] < self._number[name] and each in self._all_ways.next
            ]
            for name, following in self._usual.items()
        }
        return _Ways(onward, {name for name in self._ends if not onward[name]})

    def _read_edges(self, edges: list[Edge]) -> tuple[dict[str, list[str]], set[str]]:
        """The nodes after each node, without exits, and the nodes that lead to an exit."""
        followers: dict[str, dict[str, None]] = {name: {} for name in self._graph.nodes}
        ends: set[str] = set()
        for edge in edges:
            if edge.source not in followers:
                continue
            if edge.target in self._exits:
                ends.add(edge.source)
            elif edge.target in followers:
                followers[edge.source][edge.target] = None
        return {name: [*following] for name, following in followers.items()}, ends

    def _without_loops(self, without: str = "") -> tuple[dict[str, int], dict[str, list[str]]]:
        """A number for each node, higher than those of the nodes after it, and the edges without
        those that lead back. The node ``without`` is left out."""
        number = _postorder(
            [*self._starts, *self._graph.nodes], lambda name: self._following(name, without)
        )
        forward = {
            name: [each for each in self._following(name, without) if number[each] < at]
            for name, at in number.items()
        }
        return number, forward

    def _following(self, name: str, without: str) -> list[str]:
        following = self._followers[name]
        return [each for each in following if each != without] if without else following

    def section(self, parallel: str, heads: Iterable[str], outer: frozenset[str]) -> BranchSection:
        """``heads`` are the first nodes of the branches, ``outer`` is what lies behind the parallel
        nodes around this one."""
        heads = [
            head for head in heads if head in self._followers and not self._is_back(head, parallel)
        ]
        join = self._find(heads, outer | {parallel})
        forward = self._without_loops(join)[1] if join else self._forward
        inside = {head for head in heads if head != join} - outer
        inside |= reach(inside, lambda name: [n for n in forward[name] if n not in outer])
        behind = {join} | reach([join], self._forward.__getitem__) if join else set[str]()
        # The join may lead back into a branch: what leads to the join does not lie behind it.
        behind -= reach([join], lambda name: [n for n in self._leading(name) if n in inside])
        behind |= outer
        outside = inside | behind
        before = {parallel} | reach(
            [parallel], lambda name: [n for n in self._leading(name) if n not in outside]
        )
        return BranchSection(join, frozenset(behind), frozenset(before))

    def _is_back(self, head: str, parallel: str) -> bool:
        """Whether an edge of the parallel node to this node is a loop: no way leads to the
        parallel node without it."""
        if self._number[head] < self._number[parallel]:
            return False
        starts = [name for name in self._starts if name != head]
        return parallel not in reach(starts, lambda name: self._following(name, head))

    def _find(self, heads: list[str], outer: frozenset[str] = frozenset()) -> str:
        heads = [head for head in dict.fromkeys(heads) if head in self._all_ways.next]
        if not heads:
            return ""
        chain = (
            self._usual_ways.common(heads, outer)
            or self._main_ways.common(heads, outer)
            or self._all_ways.common(heads, outer)
        )
        return (
            self._first_fan_in(chain)
            or self._reached_fan_in(heads, outer)
            or next(iter(chain), "")
            or self._first_common(heads, outer)
        )

    def _first_fan_in(self, chain: list[str]) -> str:
        """The first fan-in that does not belong to another parallel node of this chain."""
        place = {name: number for number, name in enumerate(chain)}
        # The last first: the chain of one contains those after it, whose joins are known then. Each
        # is empty while it is looked for: a loop can put a parallel node on its own chain.
        for name in reversed(chain):
            if self._graph.nodes[name].kind == node_kinds.PARALLEL.name and name not in self._inner:
                self._inner[name] = ""
                self._inner[name] = self._find(self._forward[name])
        number = 0
        while number < len(chain):
            node = self._graph.nodes[chain[number]]
            if node.kind == node_kinds.FAN_IN.name:
                return node.id
            number += 1
            if node.kind == node_kinds.PARALLEL.name:
                number = max(number, place.get(self._inner[node.id], -1))
                if number < len(chain) and chain[number] == self._inner[node.id]:
                    number += self._graph.nodes[chain[number]].kind == node_kinds.FAN_IN.name
        return ""

    def _reached_fan_in(self, heads: list[str], outer: frozenset[str]) -> str:
        """The fan-in that most of the branches can reach, then the nearest, then by id."""
        reached: dict[str, list[int]] = {}
        # A loop may lead back to the fan-in of an earlier parallel node.
        ahead = {*heads} | reach(heads, self._forward.__getitem__)
        for head in heads:
            for fan_in, distance in fan_ins(self._graph, head).items():
                if fan_in in ahead and fan_in not in outer:
                    reached.setdefault(fan_in, []).append(distance)
        return min(
            reached, key=lambda name: (-len(reached[name]), sum(reached[name]), name), default=""
        )

    def _first_common(self, heads: list[str], outer: frozenset[str]) -> str:
        if len(heads) == 1:
            return ""
        reached = ({head} | reach([head], self._forward.__getitem__) for head in heads)
        common = set[str].intersection(*reached) - outer
        return max(common, key=self._number.__getitem__, default="")

    def _leading(self, name: str) -> list[str]:
        """The nodes with an edge to this one."""
        return [edge.source for edge in self._graph.edges_to(name)]


class _Ways:
    """The post-dominators of a graph, by the algorithm of Cooper, Harvey and Kennedy."""

    def __init__(self, followers: dict[str, list[str]], ends: set[str]) -> None:
        """``ends`` are the nodes at which a way may end."""
        leading: dict[str, list[str]] = {"": sorted(ends)}
        for name, following in followers.items():
            for each in following:
                leading.setdefault(each, []).append(name)
        self._number = _postorder([""], lambda name: leading.get(name, ()))
        self.next: dict[str, str] = {}
        """For nodes that can reach an end: the nearest node on all ways from there; or empty."""
        is_changed = True
        while is_changed:
            is_changed = False
            for name in reversed([*self._number][:-1]):
                known = [each for each in followers[name] if each in self.next]
                nearest = reduce(self._meet, [*known, ""] if name in ends else known)
                is_changed = is_changed or self.next.get(name) != nearest
                self.next[name] = nearest

    def common(self, heads: list[str], outer: frozenset[str]) -> list[str]:
        """The nodes on all ways of all these branches, the nearest first, up to ``outer``."""
        if not all(head in self.next for head in heads):
            return []
        name = reduce(self._meet, heads) if len(heads) > 1 else self.next[heads[0]]
        chain: list[str] = []
        while name and name not in outer:
            chain.append(name)
            name = self.next[name]
        return chain

    def _meet(self, one: str, other: str) -> str:
        """The nearest node on all ways from both."""
        while one != other:
            if self._number[one] < self._number[other]:
                one = self.next[one]
            else:
                other = self.next[other]
        return one


def _may_succeed(tree: conditions.Tree) -> bool:
    """Whether an edge with this condition may be followed after a success, too."""
    match tree:
        case conditions.Clause(key, str() as literal, negated, "=") if (
            key.removeprefix("context.") == "outcome"
        ):
            return literal != "success" if negated else literal not in ("fail", "retry")
        case conditions.AllOf(parts):
            return all(_may_succeed(part) for part in parts)
        case conditions.AnyOf(parts):
            return any(_may_succeed(part) for part in parts)
        case _:
            return True


def _postorder(roots: Iterable[str], following: Callable[[str], Iterable[str]]) -> dict[str, int]:
    """All nodes that these reach, each after those that follow it, with its number. Without
    recursion: a graph may have thousands of nodes in a row."""
    entered: set[str] = set()
    number: dict[str, int] = {}
    stack = [*reversed([*roots])]
    while stack:
        name = stack[-1]
        if name not in entered:
            entered.add(name)
            stack += reversed([each for each in following(name) if each not in entered])
            continue
        stack.pop()
        if name not in number:
            number[name] = len(number)
    return number


def fan_ins(graph: Graph, head: str) -> dict[str, int]:
    """The fan-ins that end a branch which starts at this node, and their distances."""
    distances: dict[str, int] = {}
    if not any(graph.of_kind(node_kinds.FAN_IN.name)):
        return distances  # most graphs: the search costs as much as the graph is long
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
