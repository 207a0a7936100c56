"""What is recorded of a workflow: its program, and what the program does between two waits. All
JSON."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from corral._pipelines.graph import Edge, Graph, Node
from corral._pipelines.scheduler.commands import Message, Question
from corral._pipelines.scheduler.outcome import FailureClass
from corral.values import Json

StepKind = Literal["visit", "ask", "sleep", "now", "random"]
"""``visit``: a node runs; ``now`` and ``random``: a value that is drawn when it is recorded."""
DRAWN = ("now", "random")


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that the program has started."""

    id: str = ""
    """Its path in the program: the scopes that it is in, its name, and its number among those with
    the same name there. As an id of a visit, it ends with ``.1``."""
    kind: StepKind = "visit"
    digest: str = ""
    """The hash of its inputs and, if it reads the workspace, of the steps that wrote there before
    it."""
    line: str = ""
    """Where the program calls it: ``fix.py:12``."""
    node: Node | None = None
    """What is shown of it, and what the engine reads: kind, agent, time limit."""
    inputs: dict[str, Json] = {}
    """What its handler reads."""
    thread: str | None = None
    """The thread whose session it continues."""
    worktrees: tuple[str, ...] = ()
    """The branches of ``flow.parallel`` with their own worktrees in which it is, the innermost
    last."""
    merges: tuple[str, ...] = ()
    """The branches whose files it merges."""
    chosen: str = ""
    """The branch that a person chose: those that conflict with it are left out."""
    question: Question | None = None
    seconds: float = 0.0
    value: Json = None
    """The value that was drawn."""
    after: tuple[str, ...] = ()
    """The steps whose ends let the program come here."""

    @property
    def name(self) -> str:
        """The path without the number of the visit."""
        return self.id.rpartition(".")[0]


class ProgramEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The function has returned or raised."""

    ok: bool = True
    result: Json = None
    reason: str = ""


class ProgramTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program did until it had to wait."""

    steps: list[Step] = []
    stopped: list[str] = []
    """Steps that it does not wait for any more."""
    end: ProgramEnd | None = None


class StepEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a step, as the program sees it."""

    id: str
    value: Json = None
    error: str = ""
    """Why it failed; empty: it did not."""
    failure_class: FailureClass = ""


class KnownStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of another run that has ended, for a run that continues it."""

    digest: str = ""
    kind: StepKind = "visit"
    message: Message | None = None
    value: Json = None


class StoredProgram(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The program of a run. Its text is stored: a run goes on with the text that it was started
    with, on each machine, whatever happens to the file."""

    path: str = ""
    name: str = ""
    """Of the function."""
    text: str = ""
    args: dict[str, Json] = {}
    writes: bool = False
    """Whether an agent may write the workspace if its step does not say what it may do."""
    known: dict[str, KnownStep] = {}
    """Steps of the run that this one continues, by their ids."""


def digest_of(*parts: object) -> str:
    """A hash of JSON values; the order of keys does not matter."""
    return blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=8).hexdigest()


def graph_of(turns: Iterable[ProgramTurn], graph: Graph) -> Graph:
    """The steps of a run, and which step followed which. ``graph`` has its name and limits."""
    nodes, edges = dict[str, Node](), list[Edge]()
    before: dict[str, dict[str, None]] = {}
    """What stands for the end of a step: its node; of one that draws a value, those before it."""
    for step in (step for turn in turns for step in turn.steps):
        after = {name: None for id in step.after for name in before.get(id, ())}
        before[step.id] = after
        if step.node is not None:
            before[step.id] = {step.node.id: None}
            nodes[step.node.id] = step.node
            edges += [Edge(name, step.node.id) for name in after]
    return replace(graph, nodes=nodes, edges=edges)


def first_difference(recorded: ProgramTurn, made: ProgramTurn) -> str:
    """Where a program took another path than the recorded one; empty: it did not."""
    for was, now in zip(recorded.steps, made.steps, strict=False):
        if was.id != now.id:
            return f"{now.line} starts the step {now.name!r}; recorded is {was.name!r} ({was.line})"
        if was.digest != now.digest:
            return f"{now.line} starts the step {now.name!r} with other inputs than recorded"
    if len(made.steps) > len(recorded.steps):
        extra = made.steps[len(recorded.steps)]
        return f"{extra.line} starts the step {extra.name!r}, which is not recorded"
    if len(recorded.steps) > len(made.steps):
        missing = recorded.steps[len(made.steps)]
        return f"the recorded step {missing.name!r} ({missing.line}) is not started"
    if recorded.stopped != made.stopped:
        return f"it stops {', '.join(made.stopped) or 'no step'}; recorded is" + (
            f" {', '.join(recorded.stopped) or 'no step'}"
        )
    return _end_difference(recorded.end, made.end)


def _end_difference(was: ProgramEnd | None, now: ProgramEnd | None) -> str:
    """The reasons of failures are not compared: they may contain addresses of objects."""
    words = ["goes on" if end is None else "returns" if end.ok else "fails" for end in (was, now)]
    if words[0] != words[1]:
        why = f" ({now.reason})" if now is not None and now.reason else ""
        return f"it {words[1]}{why}; recorded is that it {words[0]}"
    if was is not None and now is not None and was.result != now.result:
        return "it returns another value than recorded"
    return ""
