"""The scheduler of a batch: its tasks as the commands and the state of a run.

It has the interface of ``pipelines.scheduler.Scheduler``: messages in, commands out, no I/O. Each
task is one visit of the only node of the graph, with the fields of the task as context. There are
at most ``concurrency`` visits at once. When one has ended, its outcome is in a ``Checkpoint``, and
the next one begins. Nothing is remembered of a task that has ended but the counts.

At the budget of the batch no further task begins: a task that finds it spent reports that it was
not started (``is_left``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import (
    Cancelled,
    Checkpoint,
    Command,
    Ended,
    FinishRun,
    Message,
    RunNode,
    Steered,
    Stop,
)
from corral._pipelines.scheduler.outcome import LEFT, TASK_RESULT, Outcome
from corral._pipelines.scheduler.state import TRUNK, Open, RunLane, State
from corral.errors import BudgetExceeded
from corral.values import Json, as_object, decode_as, int_or_none

NODE = "item"
"""The id of the only node of a batch's graph."""


class BatchTask(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fields: dict[str, Json]
    digest: str = ""
    """Digest of the prompt and the options that affect the answer."""


CONCURRENCY = "concurrency"
"""The key of ``Steered`` that changes how many tasks run at once."""


class RoundTask(msgspec.Struct, frozen=True, array_like=True):
    """A task as it is stored with a round."""

    id: str
    digest: str
    fields: dict[str, Json] | None = None
    """None: an earlier round has its result."""


class BatchRound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tasks of a batch, and which of them one of its runs executes. They are one text, so that
    the tasks of a large batch need no more memory than that."""

    tasks: str
    """One ``RoundTask`` per line, as JSON."""
    concurrency: int = 1
    number: int = 1
    """Failed tasks are repeated, and new ones run, in another round of the batch."""
    has_own_limits: bool = False
    """Whether a task may end at a budget that is not that of the batch."""

    @staticmethod
    def text_of(tasks: Iterable[BatchTask], executed: Collection[str]) -> str:
        """``tasks``, of which those with the ids ``executed`` run."""
        lines = (
            msgspec.json.encode(
                RoundTask(task.id, task.digest, task.fields if task.id in executed else None)
            )
            for task in tasks
        )
        return b"\n".join(lines).decode()

    def all_tasks(self) -> Iterator[RoundTask]:
        start = 0
        while start < len(self.tasks):
            end = self.tasks.find("\n", start)
            end = len(self.tasks) if end < 0 else end
            yield decode_as(self.tasks[start:end].encode(), RoundTask)
            start = end + 1

    def spends_budget(self, outcome: Outcome) -> bool:
        """Whether a task with this outcome has found the budget of the batch spent."""
        is_exceeded = as_object(outcome.context_updates.get(TASK_RESULT)).get("code") == (
            BudgetExceeded.code
        )
        return is_exceeded and (not self.has_own_limits or is_left(outcome))


def is_left(outcome: Outcome) -> bool:
    """Whether the task was not started."""
    return LEFT in as_object(outcome.context_updates.get(TASK_RESULT))


class BatchScheduler:
    def __init__(self, graph: Graph, round: BatchRound, *, run_id: str = "") -> None:
        self.graph = graph
        self.state: State = State(run_id=run_id, lanes={TRUNK: RunLane(context={})})
        self._round = round
        self._waiting = (task for task in round.all_tasks() if task.fields is not None)
        self._concurrency = round.concurrency
        self._failed = 0
        self._is_spent = False

    def start(self) -> list[Command]:
        self.state.started = True
        return self._go_on()

    def receive(self, message: Message) -> list[Command]:
        """The commands that follow from this message. One of a task that has ended changes
        nothing."""
        state = self.state
        if state.finish is not None or not state.started:
            return []
        match message:
            case Ended(id=id, outcome=outcome) if id in state.open:
                del state.open[id]
                state.cost_usd += outcome.cost_usd or 0.0
                state.tokens += outcome.tokens or 0
                self._failed += not outcome.ok
                self._is_spent = self._is_spent or self._round.spends_budget(outcome)
                return [Checkpoint(node=NODE, visit=id, outcome=outcome), *self._go_on()]
            case Steered(updates=updates):
                self._concurrency = int_or_none(updates.get(CONCURRENCY)) or self._concurrency
                return self._go_on()
            case Cancelled():
                stops = [Stop(id=id) for id in state.open]
                state.open.clear()
                state.finish = FinishRun(status="cancelled", reason=message.reason or "cancelled")
                return [*stops, state.finish]
            case _:
                return []

    def _go_on(self) -> list[Command]:
        """Begin the next tasks; finish if there are none."""
        state = self.state
        commands: list[Command] = []
        while len(state.open) < self._concurrency and not self._is_spent:
            task = next(self._waiting, None)
            if task is None:
                break
            state.open[task.id] = Open(TRUNK, "visit")
            commands.append(
                RunNode(id=task.id, node=NODE, number=self._round.number, context=task.fields or {})
            )
        if not state.open:
            reason = f"{self._failed:,} failed" if self._failed else ""
            state.finish = FinishRun(status="fail" if reason else "success", reason=reason)
            commands.append(state.finish)
        return commands
