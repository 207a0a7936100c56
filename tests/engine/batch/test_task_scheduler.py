"""Which task of a batch runs next: messages in, commands out."""

from __future__ import annotations

import pytest

from corral._engine.batch.task_scheduler import (
    CONCURRENCY,
    NODE,
    BatchRound,
    BatchScheduler,
    BatchTask,
)
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler.commands import (
    Cancelled,
    Command,
    Ended,
    FinishRun,
    RunNode,
    Steered,
    Stop,
)
from corral._pipelines.scheduler.outcome import LEFT, Outcome, failed_task

GRAPH = Graph(name="b", nodes={NODE: Node(id=NODE)})


def scheduler(executed: str, *, concurrency: int = 2, own: bool = False) -> BatchScheduler:
    """Of the tasks a to e, of which ``executed`` run."""
    tasks = [BatchTask(id=name, fields={"line": f"{name}\n"}) for name in "abcde"]
    text = BatchRound.text_of(tasks, executed)
    return BatchScheduler(
        GRAPH, BatchRound(tasks=text, concurrency=concurrency, has_own_limits=own)
    )


def started(commands: list[Command]) -> str:
    return "".join(each.id for each in commands if isinstance(each, RunNode))


def end(id: str, outcome: Outcome | None = None) -> Ended:
    return Ended(id=id, outcome=outcome or Outcome())


def test_tasks_start_in_order_when_others_end_and_each_end_counts_once() -> None:
    batch = scheduler("abde")
    first = batch.start()
    assert started(first) == "ab"
    assert isinstance(first[0], RunNode)
    assert first[0].context == {"line": "a\n"}
    assert started(batch.receive(end("b"))) == "d"
    assert batch.receive(end("b")) == batch.receive(end("c")) == []
    assert started(batch.receive(end("a", failed_task("no", "x")))) == "e"
    batch.receive(end("d"))
    batch.receive(end("e"))
    assert batch.state.finish == FinishRun(status="fail", reason="1 failed")


@pytest.mark.parametrize(("own", "left", "goes_on"), [(0, 0, 0), (1, 0, 1), (1, 1, 0)])
def test_a_spent_budget_of_the_batch_starts_no_more_tasks(
    own: int, left: int, goes_on: int
) -> None:
    batch = scheduler("abcde", own=bool(own))
    batch.start()
    spent = failed_task("spent", "budget_exceeded", **({LEFT: True} if left else {}))
    assert started(batch.receive(end("a", spent))) == ("c" if goes_on else "")
    batch.receive(end("b"))
    assert (batch.state.finish is None) == bool(goes_on)


def test_more_tasks_start_with_a_larger_concurrency_and_a_cancellation_stops_them() -> None:
    batch = scheduler("abcde", concurrency=1)
    assert started(batch.start()) == "a"
    assert started(batch.receive(Steered(updates={CONCURRENCY: 3}))) == "bc"
    *stops, finish = batch.receive(Cancelled(reason="enough"))
    assert stops == [Stop(id="a"), Stop(id="b"), Stop(id="c")]
    assert finish == FinishRun(status="cancelled", reason="enough")
    assert batch.receive(end("a")) == []


def test_a_round_without_tasks_ends_at_once() -> None:
    assert scheduler("").start() == [FinishRun(status="success")]
