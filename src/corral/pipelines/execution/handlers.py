"""Node kinds: one async function each, found by its name.

::

    from corral.pipelines import Outcome, handler

    @handler("my.step")
    async def my_step(work):
        return Outcome(context_updates={"answer": 42})

A handler gets its ``NodeContext`` and returns an ``Outcome`` (or None: success). It may be run
again after a crash, so what it does twice should be as good as once. What it raises fails
the node: a ``CorralError`` by its own words and its own ``retryable``, anything else as a bug.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from corral.errors import ConfigError
from corral.events import Event
from corral.pipelines import node_kinds
from corral.pipelines.graph import Graph, Node, shape_kind
from corral.pipelines.scheduler.commands import RunNode
from corral.pipelines.scheduler.outcome import Outcome
from corral.values import Json


class ResourcesProtocol(Protocol):
    """What a process that runs nodes keeps for all of them: warm agents and the like."""

    @property
    def simulate(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """One attempt at one visit of a node."""

    run_id: str
    graph: Graph
    node: Node
    """Transformed: holes in its prompt are filled."""
    visit: RunNode
    attempt: int
    folder: Path
    """The node's own in the run folder: ``prompt.md``, ``response.md``, ``status.json``."""
    run_folder: Path
    workspace: Path
    """Where agents and commands work."""
    resources: ResourcesProtocol
    emit: Callable[[Event], None] = field(default=lambda _event: None)
    """An agent's event, as it comes."""
    keeps: bool = True
    """False: nothing is to be written into ``folder``, which need not be there."""

    @property
    def context(self) -> dict[str, Json]:
        return self.visit.context


Handler: TypeAlias = Callable[[NodeContext], Awaitable[Outcome | None]]

ENTRY_POINTS = "corral.nodes"
"""The group in which other packages name their node types: ``my.step = "my_package:my_step"``."""

_registered: dict[str, Handler] = {}


def handler(kind: str) -> Callable[[Handler], Handler]:
    """Decorates the function that runs nodes of this type."""

    def register_it(function: Handler) -> Handler:
        return register(kind, function)

    return register_it


def register(kind: str, function: Handler) -> Handler:
    """Nodes of this type run this function from now on, in this process."""
    if not kind:
        raise ConfigError("a handler needs a name")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"the handler of {kind!r} must be an async function")
    _registered[kind] = function
    return function


def find(kind: str) -> Handler:
    """What runs nodes of this type: registered here, else built in, else another package's.
    Raises ``ConfigError`` with the nearest name."""
    function = _registered.get(kind)
    if function is not None:
        return function
    if module_name := node_kinds.find(kind).handler:
        from importlib import import_module

        module = import_module(f"corral.pipelines.nodes.{module_name}")
        built: dict[str, Handler] = module.HANDLERS
        _registered[kind] = built[kind]
        return built[kind]
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=kind):
        try:
            loaded = entry.load()
        except Exception as error:  # whatever another package does when it is imported
            raise ConfigError(
                f"the node type {kind!r} of {entry.value} cannot be loaded: {error}"
            ) from error
        return register(kind, loaded)
    if kind in node_kinds.SCHEDULER_KINDS:
        raise ConfigError(f"{kind!r} has no handler: the scheduler itself runs such nodes")
    from difflib import get_close_matches

    names = registered_kinds()
    near = get_close_matches(kind, names, 1, 0.5)
    listed = ", ".join(names)
    raise ConfigError(
        f"no node type is called {kind!r}",
        hint=f"Did you mean {near[0]!r}? Known: {listed}." if near else f"Known: {listed}.",
    )


def for_node(node: Node) -> Handler:
    """What runs this node: by its type, or by its shape where no process has such a type. Raises
    ``ConfigError``."""
    kind = node.kind
    if kind in _registered or kind in node_kinds.KINDS or kind in registered_kinds():
        return find(kind)
    return find(shape_kind(node))


def is_ours(function: Handler) -> bool:
    """Whether it is built in: it ends when it is cancelled, needs a folder, and is the same in
    every process. One that somebody registered need not be."""
    return function.__module__.startswith("corral.pipelines.nodes.")


def is_built_in(kind: str) -> bool:
    """Whether nodes of this type run here without anything that somebody registered."""
    return kind in node_kinds.PUBLIC


def registered_kinds() -> list[str]:
    """The names of all node kinds that this process can run, sorted."""
    from importlib.metadata import entry_points

    others = (entry.name for entry in entry_points(group=ENTRY_POINTS))
    names = {*_registered, *node_kinds.PUBLIC, *others}
    return sorted(name for name in names if not node_kinds.find(name).internal)
