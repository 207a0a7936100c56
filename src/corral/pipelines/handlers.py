"""Node kinds: one async function each, found by its name.

::

    from corral.pipelines import Outcome, handlers

    @handlers.handler("my.step")
    async def my_step(work):
        return Outcome(context_updates={"answer": 42})

A handler gets its ``Work`` and returns an ``Outcome`` (or None: success). It may be run
again after a crash, so what it does twice should be as good as once. What it raises fails
the node: a ``CorralError`` by its own words and its own ``retryable``, anything else as a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from corral.errors import ConfigError
from corral.events import Event, Json
from corral.pipelines.graph import Graph, Node
from corral.pipelines.orders import Visit
from corral.pipelines.outcome import Outcome


class Desk(Protocol):
    """What a process that runs nodes keeps for all of them: warm agents and the like."""

    @property
    def simulate(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Work:
    """One attempt at one visit of a node."""

    run_id: str
    graph: Graph
    node: Node
    """Transformed: holes in its prompt are filled."""
    visit: Visit
    attempt: int
    folder: Path
    """The node's own in the run folder: ``prompt.md``, ``response.md``, ``status.json``."""
    run_folder: Path
    workspace: Path
    """Where agents and commands work."""
    desk: Desk
    emit: Callable[[Event], None] = field(default=lambda _event: None)
    """An agent's event, as it comes."""

    @property
    def context(self) -> dict[str, Json]:
        return self.visit.context


Handler: TypeAlias = Callable[[Work], Awaitable[Outcome | None]]

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
    if not asyncio.iscoroutinefunction(function):
        raise ConfigError(f"the handler of {kind!r} must be an async function")
    _registered[kind] = function
    return function
