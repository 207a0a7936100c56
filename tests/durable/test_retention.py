"""Runs and batches that ended long ago are forgotten when somebody says so; nothing else is."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.batches import results_of
from support.durable_processes import DurableProcesses, submit, wait_until

import corral
from corral.durable import query, retention, service
from corral.durable.batch import query as batch_query
from corral.durable.batch.queue import BatchStore
from corral.durable.dbos import database
from corral.errors import ConfigError
from corral.system import paths

CHAIN = (
    'digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; a [type="t.step"];'
    " start -> a -> exit }"
)
WAITS = CHAIN.replace('type="t.step"', 'type="t.wait", file="/never"')


def rows(db: str) -> set[str]:
    with closing(BatchStore(database.find(db))) as ledger:
        return {each.id for each in ledger.client.list_workflows()}


def pruned(db: str, older_than: float, *, dry_run: bool = False) -> list[tuple[str, str]]:
    found = asyncio.run(retention.prune(older_than=older_than, db=db, dry_run=dry_run))
    return [(each.kind, each.name) for each in found]


def test_only_what_has_ended_long_ago_goes(world: DurableProcesses) -> None:
    worker = world.worker()
    submit(world, CHAIN)
    world.wait_for_run()
    submit(world, WAITS, "open")
    wait_until(lambda: world.attempt_counts()["a.1#1"] == 2, "the second run to come to its node")
    assert pruned(world.db, 3600) == []
    assert pruned(world.db, 0, dry_run=True) == [("run", "r")]
    assert rows(world.db) == {"r", "r/a.1", "open", "open/a.1"}
    assert pruned(world.db, 0) == [("run", "r")]
    assert rows(world.db) == {"open", "open/a.1"}
    assert (world.folder / "r").is_dir(), "a folder of the user's own"
    with pytest.raises(ConfigError, match="there is no run"):
        asyncio.run(query.show("r", db=world.db))
    # One that nobody runs any more has not ended either.
    world.kill(worker)
    wait_until(
        lambda: asyncio.run(query.show("open", db=world.db)).status == "interrupted",
        "the run to be left alone",
    )
    assert pruned(world.db, 0) == []
    asyncio.run(service.cancel("open", db=world.db))
    assert pruned(world.db, 0) == [("run", "open")]
    assert rows(world.db) == set()


def test_a_folder_of_ours_goes_with_its_run(file_world: DurableProcesses) -> None:
    world = file_world
    world.worker()
    ours = paths.home() / "runs" / "mine"
    asyncio.run(
        service.start(
            corral.pipelines.load(CHAIN),
            service.RunRequest(
                folder=ours,
                workspace=world.workspace,
                run_id="mine",
                values={"log": str(world.log)},
            ),
            db=world.db,
            queue="default",
        )
    )
    world.wait_for_run("mine")
    other = paths.home() / "runs" / "another"
    other.mkdir()
    assert ours.is_dir()
    assert pruned(world.db, 0) == [("run", "mine")]
    assert not ours.exists()
    assert other.is_dir()


def test_a_batch_is_seen_and_forgotten_but_for_its_results(db: str, workspace: Path) -> None:
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
    # The same command goes on from them.
    report = corral.batch_sync(["one", "two", "three", "four"], **given)
    assert (report.earlier, report.succeeded) == (4, 4)


def test_a_batch_that_was_left_is_none_that_has_ended(new_file: str, workspace: Path) -> None:
    async def left() -> None:
        tasks = [f"{n}" for n in range(20)]
        batch = corral.batch(
            tasks, "{{task}}", simulate=True, db=new_file, name="half", concurrency=1
        )
        async with batch:
            async for _ in batch:
                break

    asyncio.run(left())
    (seen,) = asyncio.run(batch_query.list_batches(db=new_file))
    assert seen.status == "interrupted"
    assert 1 <= seen.succeeded < 20
    assert pruned(new_file, 0) == []
    asyncio.run(batch_query.cancel_batch("half", db=new_file))
    (seen,) = asyncio.run(batch_query.list_batches(db=new_file))
    assert (seen.status, seen.total) == ("cancelled", 20)
    assert pruned(new_file, 0) == [("batch", "half")]
