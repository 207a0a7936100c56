"""``prune`` deletes runs and batches that ended long ago, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.batches import results_of
from support.durable_processes import DurableProcesses, submit, wait_until

import corral
from corral._engine import query, service
from corral._engine.batch import query as batch_query
from corral._engine.dbos import client, database
from corral._engine.payloads import RunConfig, RunInput
from corral._system import paths
from corral.errors import ConfigError

CHAIN = (
    'digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; a [type="t.step"];'
    " start -> a -> exit }"
)
WAITS = CHAIN.replace('type="t.step"', 'type="t.wait", file="/never"')


def rows(db: str) -> set[str]:
    with client.connect(database.find(db)) as connected:
        return {each.id for each in connected.list_workflows()}


def pruned(db: str, older_than: float, *, dry_run: bool = False) -> list[tuple[str, str]]:
    found = corral.runs.prune_sync(older_than=older_than, db=db, dry_run=dry_run)
    return [(run.kind, run.id) for run in found]


def test_only_runs_that_ended_long_ago_are_pruned(processes: DurableProcesses) -> None:
    worker = processes.worker()
    submit(processes, CHAIN)
    processes.wait_for_run()
    submit(processes, WAITS, "open")
    wait_until(
        lambda: processes.attempt_counts()["a.1#1"] == 2, "the node of the second run to start"
    )
    assert pruned(processes.db, 3600) == []
    assert pruned(processes.db, 0, dry_run=True) == [("pipeline", "r")]
    assert rows(processes.db) == {"r", "r/a.1", "open", "open/a.1"}
    assert pruned(processes.db, 0) == [("pipeline", "r")]
    assert rows(processes.db) == {"open", "open/a.1"}
    assert (processes.folder / "r").is_dir(), "a directory outside corral's home was removed"
    with pytest.raises(ConfigError, match="there is no run"):
        asyncio.run(query.show("r", db=processes.db))
    # An interrupted run has not ended.
    processes.kill(worker)
    wait_until(
        lambda: asyncio.run(query.show("open", db=processes.db)).status == "interrupted",
        "the run to be interrupted",
    )
    assert pruned(processes.db, 0) == []
    asyncio.run(service.cancel("open", db=processes.db))
    assert pruned(processes.db, 0) == [("pipeline", "open")]
    assert rows(processes.db) == set()


def test_a_run_directory_in_corrals_home_is_removed_with_its_run(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    processes.worker()
    ours = paths.home() / "runs" / "mine"
    run_input = RunInput(
        run_id="mine",
        graph=corral.pipelines.load(CHAIN),
        config=RunConfig(folder=str(ours), workspace=str(processes.workspace)),
        values={"log": str(processes.log)},
    )
    asyncio.run(service.start(run_input, db=processes.db, queue="default"))
    processes.wait_for_run("mine")
    other = paths.home() / "runs" / "another"
    other.mkdir()
    assert ours.is_dir()
    assert pruned(processes.db, 0) == [("pipeline", "mine")]
    assert not ours.exists()
    assert other.is_dir()


@pytest.mark.deep_but_first
def test_a_batch_is_listed_and_pruned_but_its_results_stay(db: str, workspace: Path) -> None:
    file = workspace / "r.jsonl"
    given: dict[str, Any] = {"simulate": True, "db": db, "results": file, "name": "poems"}
    assert asyncio.run(batch_query.list_batches(db=db)) == []
    corral.batch_sync(["one", "two", "three"], **given)
    (seen,) = asyncio.run(batch_query.list_batches(db=db))
    assert (seen.name, seen.status, seen.output) == ("poems", "success", str(file))
    assert (seen.total, seen.succeeded, seen.failed, seen.left) == (3, 3, 0, 0)
    assert seen.ended is not None
    assert seen.created <= seen.ended
    # More tasks are another round of the same batch.
    corral.batch_sync(["one", "two", "three", "four"], accept_changed=True, **given)
    (seen,) = asyncio.run(batch_query.list_batches(db=db))
    assert (seen.total, seen.succeeded, len(seen.rounds)) == (4, 4, 2)
    shown = asyncio.run(batch_query.show_batch("poems", db=db))
    assert (shown.prompt, shown.report.succeeded) == ("{{task}}", 4)
    with pytest.raises(ConfigError, match="there is no batch 'verse'"):
        asyncio.run(batch_query.show_batch("verse", db=db))
    assert pruned(db, 3600) == []
    assert pruned(db, 0, dry_run=True) == [("batch", "poems")]
    place = paths.home() / "batches"
    assert len(list(place.iterdir())) == 2
    assert pruned(db, 0) == [("batch", "poems")]
    assert rows(db) == set()
    assert list(place.iterdir()) == []
    assert len(results_of(file)) == 4
    # The same command continues from the results.
    batch: Callable[..., corral.BatchReport] = corral.batch_sync
    report = batch(["one", "two", "three", "four"], **given)
    assert (report.earlier, report.succeeded) == (4, 4)


@pytest.mark.deep
def test_an_interrupted_batch_is_not_pruned(new_file: str, workspace: Path) -> None:
    async def leave_early() -> None:
        tasks = [f"{n}" for n in range(20)]
        batch = corral.batch(
            tasks, "{{task}}", simulate=True, db=new_file, name="half", concurrency=1
        )
        async with batch:
            async for _ in batch:
                break

    asyncio.run(leave_early())
    (seen,) = asyncio.run(batch_query.list_batches(db=new_file))
    assert seen.status == "interrupted"
    assert 1 <= seen.succeeded < 20
    assert pruned(new_file, 0) == []
    asyncio.run(batch_query.cancel_batch("half", db=new_file))
    (seen,) = asyncio.run(batch_query.list_batches(db=new_file))
    assert (seen.status, seen.total) == ("cancelled", 20)
    assert pruned(new_file, 0) == [("batch", "half")]
