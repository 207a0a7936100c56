"""What a run's journal holds, typed: what it began with, and what it came to. All JSON.

Small by intent: a node's long texts are files of the run folder, and a graph is kept once,
with its run. A field may be added with a default; anything else is another protocol.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from corral.events import Json
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Expired, Message, RunNode, Woken
from corral.pipelines.scheduler.outcome import Outcome

T = TypeVar("T")


class OwnTree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worktree that a run has for itself, on each machine that works at it."""

    repository: str
    """A folder of this machine, or what git clones."""
    commit: str
    """That its work is told against."""
    branch: str
    """That its work is kept at."""
    within: str = "."
    """The folder in it that is the workspace."""
    begins: str = ""
    """What another run had kept, where it goes on from that."""
    is_elsewhere: bool = False
    """Each machine has a copy of the repository."""


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where and how the nodes of a run are worked at."""

    folder: str
    """Of the run; below the runs of each machine's own home, where it is no whole path."""
    workspace: str
    simulate: bool = False
    agent: str = ""
    model: str = ""
    options: dict[str, Json] = {}
    """Of ``corral.run``, for the agents of all nodes."""
    detached: bool = False
    """Whether agents run in a host of their own, which outlives the worker."""
    tree: OwnTree | None = None
    """A worktree of the run's own: then the workspace is a folder in it."""
    artefacts: str = ""
    """A URL that the run's artefacts are put to at its end."""
    imports: tuple[str, ...] = ()
    """Modules that register node types, for a host to import."""
    source: str = ""
    """The pipeline's file, where it was one."""
    goal: str = ""
    """What was given in place of the file's."""
    at_once: int = 0
    """Nodes at work at once, where that is known: how many agents are kept warm."""


class RunInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of ``corral.run``."""

    run_id: str
    graph: Graph
    setting: RunConfig
    queue: str
    at: float = 0.0
    """Seconds since the epoch, as the one who began it had it."""
    values: dict[str, Json] = {}
    known: dict[str, Message] = {}
    """What came of visits and questions in the run that this one goes on from."""
    forked_from: str = ""
    reply_to: str = ""
    """The run whose node this one is, and the visit there."""
    reply_id: str = ""
    depth: int = 0
    """Pipelines that this one is in."""


class NodeInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of ``corral.node``: a visit, or a wait."""

    run_id: str
    visit: RunNode | None = None
    sleep: float = 0.0
    then: Expired | Woken | None = None
    """What is told to the run after the sleep."""
    child: str = ""
    """The run that is looked at, after the sleep."""
    alone: bool = False
    """Of no run: the outcome is the workflow's own output, and nobody is told."""


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step came to: an attempt at a node, and what follows from it."""

    outcome: Outcome
    pause: float | None = None
    """Seconds until the next attempt; None: there is none."""


class Retrying(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="retrying"):
    """Told to a run by one of its visits: another attempt follows. Only for people to see."""

    visit: str
    node: str
    attempt: int
    delay: float
    reason: str = ""


class RunOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of ``corral.run``."""

    status: str
    reason: str = ""
    context: dict[str, Json] = {}
    completed: list[str] = []
    outcomes: dict[str, Outcome] = {}
    cost_usd: float = 0.0
    tokens: int = 0
    left: dict[str, Json] = {}
    """``workspace``: the branch of its work. ``artefacts``: their names, or why there are none."""


def answer_key(question: str) -> str:
    """The key of the message that answers this question: only the first with a key counts."""
    return f"answered {question}"


def pack(value: msgspec.Struct) -> dict[str, Json]:
    return cast("dict[str, Json]", msgspec.to_builtins(value))


def unpack(raw: object, kind: type[T]) -> T:
    return msgspec.convert(raw, kind)


def unpack_message(raw: object) -> Message | Retrying:
    return cast("Message | Retrying", msgspec.convert(raw, cast("Any", Message | Retrying)))
