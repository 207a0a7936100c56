"""Where a run stands: all that its plan remembers, as JSON.

A run goes through its graph on lanes: the trunk, and one for each branch of a fork
(a parallel node at work). A lane stands at one node, with a context of its own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.events import Json
from corral.pipelines.scheduler.commands import FinishRun
from corral.pipelines.scheduler.outcome import Outcome

Context = dict[str, Json]

TRUNK = ""
LOGS = 200
"""Lines kept."""

_OWN = ("graph.", "internal.", "parallel.", "human.gate.", "stack.")
_OWN_KEYS = {"outcome", "preferred_label", "current_node", "last_stage"}


class Open(msgspec.Struct):
    """What was ordered and is not answered yet."""

    lane: str
    what: Literal["visit", "ask", "child", "wait"]


class Branch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One edge of a parallel node, and what came of it."""

    id: str
    """Its first node; a second edge to the same one is ``node#2``."""
    target: str
    fidelity: str = ""
    thread: str = ""
    """Of its edge."""
    status: str = "waiting"
    """Then ``running``, then that of an outcome, or ``cancelled``."""
    reason: str = ""
    exit: str = ""
    """Where it came to an exit."""
    last_visit: str = ""
    last_stage: str = ""
    last_response: str = ""
    notes: str = ""
    score: float = 0.0
    updates: Context = {}


class Fork(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A parallel node at work."""

    id: str
    """Of its visit."""
    lane: str
    join: str
    """The fan-in where control goes on; empty: there is none."""
    branches: list[Branch]
    running: int = 0
    next: int = 0
    """The first that has not begun."""
    over: int = 0


class Lane(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str = TRUNK
    node: str = ""
    visit: str = ""
    number: int = 0
    previous: str | None = None
    """The node it came from."""
    context: Context
    fidelity: str = ""
    thread: str = ""
    """Of the edge it came by."""
    open: list[str] = []
    """What it waits for."""
    fork: str = ""
    """Whose branch it is."""
    branch: int = 0
    depth: int = 0
    updates: Context = {}
    """Of a branch: what its nodes have set."""
    joined: list[Branch] = []
    """At a fan-in: what is joined."""
    attempt: int = 1
    """How often a person was asked."""
    cycle: int = 0
    """Of a manager."""


class State(msgspec.Struct, kw_only=True, omit_defaults=True):
    run_id: str = ""
    begun: bool = False
    round: int = 1
    """Rises with every ``loop_restart``."""
    lanes: dict[str, Lane] = {}
    forks: dict[str, Fork] = {}
    open: dict[str, Open] = {}
    visits: dict[str, int] = {}
    """How often each node was visited, over all rounds."""
    completed: list[str] = []
    outcomes: dict[str, Outcome] = {}
    """Of each node's last visit, without its context updates."""
    retries: dict[str, int] = {}
    gates: dict[str, bool] = {}
    """Goal gates that were visited."""
    cost_usd: float = 0.0
    tokens: int = 0
    told: int = 0
    logs: list[str] = []
    finish: FinishRun | None = None

    @property
    def trunk(self) -> Lane:
        return self.lanes[TRUNK]

    @property
    def context(self) -> Context:
        """The trunk's."""
        return self.lanes[TRUNK].context

    @property
    def current_node(self) -> str:
        return self.lanes[TRUNK].node

    def log(self, line: str) -> None:
        self.logs.append(line)
        if len(self.logs) > LOGS:
            del self.logs[0]

    def as_outcome(self) -> Outcome:
        """A finished run, as the outcome of the node whose child it was."""
        end = self.finish
        reason = "it has not ended" if end is None else end.reason
        return Outcome(
            status="success" if end is not None and end.status == "success" else "fail",
            failure_reason="" if end is not None and end.status == "success" else reason,
            context_updates=without_own(self.context),
            cost_usd=self.cost_usd or None,
            tokens=self.tokens or None,
        )


def to_json(state: State) -> bytes:
    return msgspec.json.encode(state)


def from_json(data: bytes | str) -> State:
    return msgspec.json.decode(data, type=State)


def without_own(context: Context) -> Context:
    """What another run may see of a context: all but what an engine keeps for itself."""
    return {
        key: value
        for key, value in context.items()
        if key not in _OWN_KEYS and not key.startswith(_OWN)
    }


def copied(context: Context) -> Context:
    """Deep: whoever changes it changes nobody else's."""
    return {
        key: _copied(value) if value.__class__ in (dict, list) else value
        for key, value in context.items()
    }


def _copied(value: Json) -> Json:
    if isinstance(value, dict):
        return copied(value)
    if isinstance(value, list):
        return [_copied(item) if item.__class__ in (dict, list) else item for item in value]
    return value
