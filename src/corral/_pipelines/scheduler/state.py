"""The state of a run: everything that its scheduler remembers, as JSON.

A run moves through its graph on lanes: the trunk, and one for each branch of a fork (a parallel
node that is running). A lane is at one node and has its own context.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral._pipelines.scheduler.commands import BranchWork, FinishRun
from corral._pipelines.scheduler.outcome import Outcome
from corral.values import Json, decode_as

Context = dict[str, Json]

WORKTREE = "internal.worktree."
"""The beginning of the key that has the ``BranchWork`` of a lane with its own worktree."""
BRANCHES = "internal.branches"
"""The key of an outcome's updates that has the ``BranchWork`` of the items of its node."""
LEFT_OUT = "parallel.left_out"
"""The key of the context that has the branches which were not merged because of a conflict:
``id``, ``branch`` and ``files``."""
What = Literal["visit", "ask", "child", "wait"]
"""What a command without a reply waits for."""
TRUNK = ""
MAX_LOGS = 200

_INTERNAL = ("graph.", "internal.", "parallel.", "human.gate.", "stack.")
_INTERNAL_KEYS = {"outcome", "preferred_label", "current_node", "last_stage"}


class Open(msgspec.Struct):
    """A command without a reply yet."""

    lane: str
    what: What


class Branch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One edge of a parallel node and its result."""

    id: str
    """Its first node; a second edge to the same node is ``node#2``."""
    target: str
    fidelity: str = ""
    """``fidelity`` of its edge."""
    thread: str = ""
    """``thread_id`` of its edge."""
    status: str = "waiting"
    """``waiting``, then ``running``, then the status of an outcome, or ``cancelled``."""
    reason: str = ""
    end: str = ""
    """The join, fan-in or exit that it came to."""
    last_visit: str = ""
    last_stage: str = ""
    last_response: str = ""
    notes: str = ""
    score: float = 0.0
    updates: Context = {}


class Fork(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A parallel node whose branches run."""

    id: str
    """The visit of the parallel node."""
    lane: str
    branches: list[Branch]
    running: int = 0
    next: int = 0
    """Index of the first branch that has not started."""
    over: int = 0

    def lane_id(self, number: int) -> str:
        """The id of the lane that runs this branch."""
        return f"{self.id}/{self.branches[number].id}"


class ForkEnd(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The branches of a parallel node, or the items of a ``for_each``, are over."""

    outcome: Outcome
    """The outcome of the node."""
    join: str = ""
    """The fan-in where its lane continues; empty: the outcome says where."""
    merges: tuple[BranchWork, ...] = ()
    """Branches whose files must be merged before the lane continues."""
    conflict: Outcome | None = None
    """The outcome of that, if there was a conflict: then a person is asked."""
    chosen: str = ""
    """The branch that the person chose."""


class RunLane(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str = TRUNK
    node: str = ""
    visit: str = ""
    number: int = 0
    previous: str | None = None
    """The node that it came from."""
    context: Context
    fidelity: str = ""
    thread: str = ""
    """``thread_id`` of the edge that it followed."""
    open: list[str] = []
    """Ids of the commands whose replies it waits for."""
    fork: str = ""
    """Id of the fork that it is a branch of; empty: the trunk."""
    branch: int = 0
    depth: int = 0
    updates: Context = {}
    """What the nodes of a branch have set."""
    joined: list[Branch] = []
    """At a fan-in: the branches to join."""
    worktrees: tuple[str, ...] = ()
    """The lanes with their own worktree in which it is, the innermost last."""
    merging: ForkEnd | None = None
    """Of a node whose branches are over, while their files are merged."""
    attempt: int = 1
    """How often the person of a human gate was asked."""
    cycle: int = 0
    """Cycles of a manager loop."""


class State(msgspec.Struct, kw_only=True, omit_defaults=True):
    run_id: str = ""
    started: bool = False
    round: int = 1
    """Counts up with every ``loop_restart``."""
    lanes: dict[str, RunLane] = {}
    forks: dict[str, Fork] = {}
    open: dict[str, Open] = {}
    visits: dict[str, int] = {}
    """How often each node was visited, in all rounds."""
    completed: list[str] = []
    outcomes: dict[str, Outcome] = {}
    """The outcome of each node's last visit, without its context updates."""
    retries: dict[str, int] = {}
    gates: dict[str, bool] = {}
    """The goal gates that were visited."""
    cost_usd: float = 0.0
    tokens: int = 0
    event_count: int = 0
    logs: list[str] = []
    finish: FinishRun | None = None

    @property
    def trunk(self) -> RunLane:
        return self.lanes[TRUNK]

    @property
    def context(self) -> Context:
        """The context of the trunk."""
        return self.lanes[TRUNK].context

    @property
    def current_node(self) -> str:
        return self.lanes[TRUNK].node

    def log(self, line: str) -> None:
        self.logs.append(line)
        if len(self.logs) > MAX_LOGS:
            del self.logs[0]

    def progress(self) -> dict[str, Json]:
        """What the manager of this run observes. The outcome comes with the end of the run only."""
        status = "running"
        if self.finish is not None:
            status = "completed" if self.finish.status == "success" else "failed"
        return {
            "status": status,
            "current_node": self.current_node,
            "completed": len(self.completed),
        }

    def as_outcome(self) -> Outcome:
        """A finished child run as the outcome of the node that ran it."""
        end = self.finish
        reason = "the run has not ended" if end is None else end.reason
        return Outcome(
            status="success" if end is not None and end.status == "success" else "fail",
            failure_reason="" if end is not None and end.status == "success" else reason,
            context_updates=without_internal_keys(self.context),
            cost_usd=self.cost_usd or None,
            tokens=self.tokens or None,
        )


def to_json(state: State) -> bytes:
    return msgspec.json.encode(state)


def from_json(data: bytes | str) -> State:
    return decode_as(data, State)


def without_internal_keys(context: Context) -> Context:
    """What another run may see of a context: everything but the keys that corral itself sets."""
    return {
        key: value
        for key, value in context.items()
        if key not in _INTERNAL_KEYS and not key.startswith(_INTERNAL)
    }


def deep_copy(context: Context) -> Context:
    """A copy that shares no object with the original."""
    return {
        key: _copy_value(value) if value.__class__ in (dict, list) else value
        for key, value in context.items()
    }


def _copy_value(value: Json) -> Json:
    if isinstance(value, dict):
        return deep_copy(value)
    if isinstance(value, list):
        return [_copy_value(item) if item.__class__ in (dict, list) else item for item in value]
    return value
