"""Tasks that run in the process of their batch: what is repeated, cancelled and left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import corral
from corral._engine import process_engine
from corral._engine.batch import query
from corral._engine.dbos import adapter
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.nodes import item
from corral._pipelines.scheduler.outcome import Outcome

TASKS = [{"id": "a"}, {"id": "b"}]


class Tasks:
    """What runs instead of agents."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.fails: set[tuple[str, int]] = set()
        self.hangs: set[str] = set()

    async def run(self, work: NodeContext) -> Outcome:
        key = (work.visit.id, work.attempt)
        self.attempts.append(key)
        if work.visit.id in self.hangs:
            await asyncio.Event().wait()
        if key in self.fails:
            return Outcome(status="retry", failure_reason="not yet")
        return await item.item(work)


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    made = Tasks()
    handlers.register("batch.item", made.run)
    yield made
    handlers.register("batch.item", item.item)


def batch(db: str, workspace: Path) -> corral.Batch[None]:
    return corral.batch(TASKS, "task {{id}}", simulate=True, name="b", db=db, cwd=workspace)


@pytest.mark.deep
async def test_a_failed_attempt_is_repeated_and_not_made_again(
    db: str, workspace: Path, tasks: Tasks
) -> None:
    tasks.fails = {("b", 1), ("b", 2)}
    report = await batch(db, workspace)
    assert report.ok, report.failures
    assert sorted(tasks.attempts) == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]
    assert {each.id: each.attempts for each in report.results} == {"a": 1, "b": 3}


async def test_a_batch_that_is_cancelled_from_outside_ends_and_can_be_continued(
    new_file: str, workspace: Path, tasks: Tasks
) -> None:
    tasks.hangs = {"b"}
    running = asyncio.create_task(batch(new_file, workspace).run_to_end())
    while len(tasks.attempts) < 2:
        await asyncio.sleep(0.01)
    assert await query.cancel_batch("b", db=new_file) >= 1
    report = await running
    assert (report.succeeded, report.failed, report.left) == (1, 0, 1)
    (shown,) = await query.list_batches(db=new_file)
    assert shown.status == "cancelled"
    tasks.hangs = set()
    assert (await batch(new_file, workspace)).ok


async def test_an_interrupted_batch_is_continued_in_the_same_engine(
    new_file: str, workspace: Path, tasks: Tasks
) -> None:
    tasks.hangs = {"b"}
    async with process_engine.used(new_file):
        running = asyncio.create_task(batch(new_file, workspace).run_to_end())
        while len(tasks.attempts) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        tasks.hangs = set()
        report = await batch(new_file, workspace)
    assert report.ok, report.failures
    assert sorted(tasks.attempts)[-2:] == [("b", 1), ("b", 1)]


async def test_a_batch_that_is_interrupted_while_it_is_started_is_continued(
    new_file: str, workspace: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, is_cancelled = asyncio.get_running_loop(), threading.Event()

    def cancel() -> None:
        running.cancel()
        is_cancelled.set()

    def watch(moment: str) -> None:
        if moment == "before step nodes":
            loop.call_soon_threadsafe(cancel)
            is_cancelled.wait(10)

    async with process_engine.used(new_file):
        monkeypatch.setattr(adapter, "watch", watch)
        running = asyncio.create_task(batch(new_file, workspace).run_to_end())
        await asyncio.wait({running})
        assert running.cancelled()
        monkeypatch.undo()
        report = await asyncio.wait_for(batch(new_file, workspace).run_to_end(), 60)
    assert report.ok, report.failures


async def test_a_changed_concurrency_counts_for_the_round_that_goes_on(
    new_file: str, workspace: Path, tasks: Tasks
) -> None:
    begin = partial(
        corral.batch, ["1", "2", "3"], simulate=True, name="b", db=new_file, cwd=workspace
    )
    tasks.hangs = {"1", "2", "3"}
    running = asyncio.create_task(begin(concurrency=1).run_to_end())
    while not tasks.attempts:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert tasks.attempts == [("1", 1)]
    running = asyncio.create_task(begin(concurrency=3).run_to_end())
    while len(tasks.attempts) < 4:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
