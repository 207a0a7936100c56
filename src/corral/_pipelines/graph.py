"""The graph of a pipeline: data without behavior.

An attribute has the type with which it was written. A duration stays text (``15m``) and is
converted to seconds when it is read. Unknown attributes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeAlias

import msgspec

from corral._core.durations import seconds
from corral._core.spending import LIMITS
from corral._pipelines import node_kinds
from corral.values import decode_as

Value: TypeAlias = str | int | float | bool


class Node(msgspec.Struct, omit_defaults=True, gc=False):
    """A node of a graph, with its attributes.

    ::

        for node in pipelines.load("release.dot").nodes.values():
            print(node.id, node.attrs.get("agent"))
    """

    id: str
    attrs: dict[str, Value] = {}
    classes: tuple[str, ...] = ()
    """From ``class`` and from the labelled subgraphs around it."""
    line: int = 0
    column: int = 0
    within: str = ""
    """The class of the innermost subgraph around it that has a label."""
    inherits_timeout: bool = False
    """Its ``timeout`` comes from the defaults of nodes (``node [timeout=5m]``)."""

    @property
    def kind(self) -> str:
        """The name of its node kind: its ``type``, else the kind of its shape."""
        kind = self.attrs.get("type")
        if not kind:
            return shape_kind(self)
        name = kind if isinstance(kind, str) else str(kind)
        return node_kinds.ALIASES.get(name, name)

    @property
    def label(self) -> str:
        return str(self.attrs.get("label", self.id))

    def text(self, key: str, default: str = "") -> str:
        return str(self.attrs.get(key, default))

    def names(self, key: str) -> list[str]:
        """The items of a comma-separated list."""
        return [name for item in self.text(key).split(",") if (name := item.strip())]

    def is_true(self, key: str) -> bool:
        return self.attrs.get(key) in (True, "true")

    def number(self, key: str, default: int) -> int:
        return int(self.attrs.get(key, default))

    @property
    def gate_timeout(self) -> float | None:
        """Seconds that a human gate waits: its ``human.timeout``, or its own ``timeout``. A default
        for all nodes means the work of agents and tools, not the time that a person has."""
        timeout = self.seconds("human.timeout")
        if timeout is not None or self.inherits_timeout:
            return timeout
        return self.seconds("timeout")

    def seconds(self, key: str, default: float | None = None) -> float | None:
        value = self.attrs.get(key)
        return default if value is None or value == "" else seconds(value)


def shape_kind(node: Node) -> str:
    """The kind of a node with this shape and no type."""
    return node_kinds.of_shape(str(node.attrs.get("shape", ""))).name


class Edge(msgspec.Struct, omit_defaults=True, gc=False):
    """A connection of two nodes, with its attributes.

    ::

        for edge in pipelines.load("release.dot").edges:
            print(edge.source, edge.target, edge.attrs.get("condition"))
    """

    source: str
    target: str
    attrs: dict[str, Value] = {}
    line: int = 0
    column: int = 0

    @property
    def label(self) -> str:
        return str(self.attrs.get("label", ""))

    @property
    def condition(self) -> str:
        return str(self.attrs.get("condition", ""))

    @property
    def weight(self) -> float:
        return float(self.attrs.get("weight", 0))

    @property
    def restarts(self) -> bool:
        return self.attrs.get("loop_restart") in (True, "true")


class Graph(msgspec.Struct, omit_defaults=True, dict=True):
    """Not changed after it was built: a transform returns a new graph.

    ::

        graph = pipelines.load("review.dot")
        print(list(graph.nodes), len(graph.edges))
    """

    name: str
    attrs: dict[str, Value] = {}
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []

    @property
    def goal(self) -> str:
        return str(self.attrs.get("goal", ""))

    @property
    def has_limits(self) -> bool:
        """Whether it limits what a run may spend (``run_limits``)."""
        return any(self.attrs.get(name) not in (None, "") for name in LIMITS)

    @cached_property
    def _out(self) -> dict[str, list[Edge]]:
        out: dict[str, list[Edge]] = {}
        for edge in self.edges:
            out.setdefault(edge.source, []).append(edge)
        return out

    @cached_property
    def _into(self) -> dict[str, list[Edge]]:
        into: dict[str, list[Edge]] = {}
        for edge in self.edges:
            into.setdefault(edge.target, []).append(edge)
        return into

    def edges_from(self, node: str) -> list[Edge]:
        return self._out.get(node, [])

    def edges_to(self, node: str) -> list[Edge]:
        return self._into.get(node, [])

    @cached_property
    def _kinds(self) -> dict[str, list[Node]]:
        kinds: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            kinds.setdefault(node.kind, []).append(node)
        return kinds

    def of_kind(self, *kinds: str) -> Iterable[Node]:
        """The nodes of these kinds: by kind, then in the order of the text."""
        return (node for kind in kinds for node in self._kinds.get(kind, ()))


def reach(begin: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """The nodes after these. Without recursion: a graph may have thousands of nodes in a row."""
    reached: set[str] = set()
    todo = [*begin]
    while todo:
        for name in following(todo.pop()):
            if name not in reached:
                reached.add(name)
                todo.append(name)
    return reached


def to_json(graph: Graph) -> bytes:
    return msgspec.json.encode(graph)


def from_json(data: bytes | str) -> Graph:
    return decode_as(data, Graph)


POLL = 45.0
ACTIONS = "observe,wait"


_PROMPT_FILE = re.compile(r"\s*@([^\s@]\S*)\s*")


def named_prompt_file(node: Node) -> str:
    """The file that has the prompt, if the prompt is ``@plan.md`` and nothing else, or if there is
    only ``prompt_file``."""
    if prompt := node.text("prompt"):
        named = _PROMPT_FILE.fullmatch(prompt)
        return named[1] if named else ""
    return node.text("prompt_file").strip().removeprefix("@")


def dotfile(graph: Graph, node: Node) -> str:
    """The file of the pipeline that an ``include`` or a manager runs; empty: it names none."""
    for key in node_kinds.CHILD_FILES:
        if file := node.text(key):
            return file
    return str(graph.attrs.get(node_kinds.CHILD_FILES[0], ""))


def workdir(graph: Graph, node: Node) -> str:
    """The working directory of the child pipeline; empty: the same as of this one."""
    return node.text("stack.child_workdir") or str(graph.attrs.get("stack.child_workdir", ""))


def does(node: Node, action: str) -> bool:
    actions = node.text("manager.actions", ACTIONS)
    return action in (name.strip() for name in actions.split(","))


def poll_interval(node: Node) -> float:
    """Seconds between two cycles of a manager. Raises ``ValueError``."""
    if not does(node, "wait"):
        return 0.0
    return node.seconds("manager.poll_interval", POLL) or 0.0
