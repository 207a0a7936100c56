"""What a plan orders, and what it is told: the whole tongue between it and its drivers.

A plan never waits. It is told one message at a time and answers with the orders that
follow from it, in a fixed order; whoever drives it (in memory, or a durable engine)
carries them out and brings back what came of them, in whatever order that happens. All
of it is JSON: a durable driver journals the messages, and the same messages in the same
order always give the same orders.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral.events import Json
from corral.pipelines.events import PipelineEvent
from corral.pipelines.scheduler.outcome import Outcome

QuestionKind = Literal["choice", "yes_no", "confirmation", "text"]


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str
    """What a person types: the accelerator, else a letter; unique in its question."""
    label: str
    target: str
    written: str = ""
    """The edge's label as it is written, with its accelerator."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    """Of the visit that asks."""
    node: str
    text: str
    choices: tuple[Choice, ...] = ()
    """None: any text will do."""
    default: str | None = None
    timeout: float | None = None
    """Seconds."""

    @property
    def kind(self) -> QuestionKind:
        """What a person is asked for: one of the choices, yes or no, a confirmation (the only
        choice), or free text."""
        if not self.choices:
            return "text"
        if len(self.choices) == 1:
            return "confirmation"
        labels = {choice.label.lower() for choice in self.choices}
        return "yes_no" if labels == {"yes", "no"} else "choice"


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    value: str = ""
    """A choice's key, label or target, whatever its case; or free text."""
    text: str = ""
    """What the person adds to it."""
    skipped: bool = False


# Orders: what is to be done.


class RunNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="visit"):
    """Run this node, with all its attempts; answer with ``Ended``."""

    id: str
    """``node.3``: the node and the number of the visit. Unique in a run, the same on replay."""
    node: str
    number: int
    context: dict[str, Json]
    """What the node may read. Its updates come back in the outcome."""
    fidelity: str = "compact"
    thread: str | None = None
    """Whose session a node of fidelity ``full`` goes on with."""
    previous: str | None = None
    """The node before it, on its own way through the graph."""


class AskHuman(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ask"):
    """Put this to a person; answer with ``Answered``, or ``Expired`` at the timeout. It may wait
    for days: hold nothing meanwhile."""

    question: Question


class Child(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="child"):
    """Run another pipeline as a run of its own; answer with ``Ended``."""

    id: str
    node: str
    dotfile: str
    workdir: str = ""
    context: dict[str, Json] = {}


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="wait"):
    """Answer with ``Woken`` after so many seconds."""

    id: str
    node: str
    seconds: float
    child: str = ""
    """The open child whose looks ``Woken`` tells of, where there is one."""


class Steer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="steer"):
    """Tell the plan of this open child ``Steered``. No answer is due; a child that has ended
    is not told."""

    child: str
    updates: dict[str, Json]


class Stop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stop"):
    """Nobody waits for this visit, question, child or wait any more: end it. No answer is due."""

    id: str


class Restart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="restart"):
    """The run starts again at this node with a fresh folder. What was to be stopped has been
    ordered to; visits go on counting."""

    round: int
    """The second is 2."""
    node: str


class EmitEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tell"):
    """Something happened: put it on the run's stream, with a time."""

    number: int
    """Counts from 1 in a run, the same on replay: who has told it once need not do so again."""
    event: PipelineEvent


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="checkpoint"):
    """The state is worth showing to people: a node has ended."""

    node: str
    visit: str = ""
    round: int = 1
    outcome: Outcome | None = None
    """Of a node that the plan did itself: nobody else can write down what it came to."""


class FinishRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finish"):
    """The last order."""

    status: Literal["success", "fail", "cancelled"]
    reason: str = ""


Command = (
    RunNode | AskHuman | Child | Wait | Steer | Stop | Restart | EmitEvent | Checkpoint | FinishRun
)


# Messages: what came of it.


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
    """Of the child: ``status`` (``running``), ``current_node``, ``completed`` (a number),
    ``outcome``; kept in the context as ``stack.child.*``."""


class Steered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="steered"):
    """The manager of this run wants its context to say this."""

    updates: dict[str, Json]


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cancelled"):
    """Somebody wants the whole run ended."""

    reason: str = ""


Message = Ended | Answered | Expired | Woken | Steered | Cancelled
