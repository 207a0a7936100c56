"""The protocol between a scheduler and its driver: commands and messages.

The scheduler takes one message at a time and returns the commands that follow from it, in a fixed
order. The driver (in memory or durable) carries them out and returns the results as messages, in
any order. Both are JSON: a durable driver writes the messages to its journal, and the same
messages in the same order always give the same commands.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral._core.spending import Raise
from corral._pipelines.events import PipelineEvent
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler.outcome import Outcome
from corral.values import Json

QuestionKind = Literal["choice", "yes_no", "confirmation", "text"]


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the answers that a question offers, and the node to which it leads.

    ::

        result = pipelines.run_sync("release.dot")
        print([(choice.key, choice.label) for q in result.questions for choice in q.choices])
    """

    key: str
    """What a person types: the accelerator, else a letter. Unique in its question."""
    label: str
    target: str
    written: str = ""
    """The label of the edge as in the file, with its accelerator."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question of a run to a person.

    ::

        for question in pipelines.run_sync("release.dot").questions:
            print(question.id, question.text)
    """

    id: str
    """The id of the visit that asks."""
    node: str
    text: str
    choices: tuple[Choice, ...] = ()
    """Empty: any text is an answer."""
    default: str | None = None
    timeout: float | None = None
    """Seconds."""
    deadline: float | None = None
    """When it expires, in seconds since the epoch. Set by the engine that asks, if there is a
    ``timeout``; None where that is not known."""

    @property
    def at_deadline(self) -> str:
        """What happens at the deadline."""
        if self.default is None:
            return "then it is asked again, or the gate fails"
        labels = {choice.key: choice.label for choice in self.choices}
        return f"then {labels.get(self.default, self.default)!r} is the answer"

    @property
    def kind(self) -> QuestionKind:
        """How to ask: for one of the choices, yes or no, a confirmation (a single choice), or
        free text."""
        if not self.choices:
            return "text"
        if len(self.choices) == 1:
            return "confirmation"
        labels = {choice.label.lower() for choice in self.choices}
        return "yes_no" if labels == {"yes", "no"} else "choice"


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a question: the key of a choice, a text, or neither if it was skipped.

    ::

        pipelines.Queued([pipelines.Answer(value="approve")])
    """

    value: str = ""
    """A choice's key, label or target (case does not matter), or free text."""
    text: str = ""
    """A comment of the person beside the choice."""
    skipped: bool = False


# Commands: what the driver must do.


class BranchWork(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done in a worktree of a branch: commits of the repository."""

    base: str
    """What it started from."""
    commit: str
    name: str
    """The git branch that has it."""
    id: str = ""
    """The branch of the parallel node, or the item of a ``for_each``."""


class RunNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="visit"):
    """Run this node with all its attempts; reply with ``Ended``."""

    id: str
    """``node.3``: the node and the number of the visit. Unique in a run, the same on replay."""
    node: str
    number: int
    context: dict[str, Json]
    """What the node may read. The outcome has its updates."""
    fidelity: str = "compact"
    thread: str | None = None
    """The thread whose session a node with fidelity ``full`` resumes."""
    previous: str | None = None
    """The node before this one in its lane."""
    worktrees: tuple[str, ...] = ()
    """The lanes with their own worktree in which it is, the innermost last: it works there.
    Empty: it works where the run does."""
    merges: tuple[BranchWork, ...] = ()
    """The branches, or items, of the node are over: their files are merged now."""
    chosen: str = ""
    """The branch that a person chose: those that conflict with it are left out."""
    definition: Node | None = None
    """The node, if the graph of the run does not have it: a step of a workflow."""


def node_of(graph: Graph, visit: RunNode) -> Node:
    """The node of a visit. Raises ``KeyError`` if it is of another graph."""
    return graph.nodes[visit.node] if visit.definition is None else visit.definition


class AskHuman(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ask"):
    """Ask a person; reply with ``Answered``, or at the timeout with ``Expired``. This can take
    days: keep no process or connection for it."""

    question: Question


class RunChild(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="child"):
    """Run another pipeline as its own run; reply with ``Ended``."""

    id: str
    node: str
    dotfile: str
    workdir: str = ""
    context: dict[str, Json] = {}
    worktrees: tuple[str, ...] = ()
    """As of ``RunNode``."""


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="wait"):
    """Reply with ``Woken`` after so many seconds."""

    id: str
    node: str
    seconds: float
    child: str = ""
    """The open child whose progress ``Woken`` reports; empty: no child."""


class Steer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="steer"):
    """Send ``Steered`` to the scheduler of this child, unless it has ended. No reply."""

    child: str
    updates: dict[str, Json]


class Stop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stop"):
    """Stop this visit, question, child or wait: its result is not needed any more. No reply."""

    id: str


class Restart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="restart"):
    """The run starts again at this node with a fresh directory. ``Stop`` commands for everything
    open came before. Visits are not counted from 1 again."""

    round: int
    """The first restart is round 2."""
    node: str


class EmitEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tell"):
    """Write this event to the run's stream, with the time."""

    number: int
    """Counts from 1 in a run, and is the same on replay: a driver writes each number once."""
    event: PipelineEvent


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="checkpoint"):
    """A node has ended: a good time to save the state."""

    node: str
    visit: str = ""
    round: int = 1
    outcome: Outcome | None = None
    """The outcome of a node that the scheduler ran itself: the driver must write it down."""


class FinishRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finish"):
    """The run is over. This is the last command."""

    status: Literal["success", "fail", "cancelled"]
    reason: str = ""


class RaiseBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="raise"):
    """Raise the limits of the run: a person chose that at a gate. No reply. It may be given again
    after a crash, with the same id: then it is done once."""

    id: str
    amounts: Raise


Command = (
    RunNode
    | AskHuman
    | RunChild
    | Wait
    | Steer
    | Stop
    | Restart
    | EmitEvent
    | Checkpoint
    | RaiseBudget
    | FinishRun
)


# Messages: what the driver reports.


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ended"):
    id: str
    outcome: Outcome


class Answered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="answered"):
    id: str
    answer: Answer
    by: str = ""


class Expired(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="expired"):
    id: str


class Woken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="woken"):
    id: str
    seen: dict[str, Json] = {}
    """The child's ``status`` (``running``, ``completed``, ``failed``), ``current_node`` and
    ``completed`` (a number). The context has them as ``stack.child.*``."""


class Steered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="steered"):
    """The manager of this run changes its context."""

    updates: dict[str, Json]


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cancelled"):
    """The run was cancelled."""

    reason: str = ""


Message = Ended | Answered | Expired | Woken | Steered | Cancelled
