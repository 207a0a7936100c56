"""A new run that continues another from a node, or with a changed graph."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.durable_processes import CHAIN, DurableProcesses, submit, wait_until

from corral._engine import query
from corral._engine.continue_run import (
    Changes,
    Continuation,
    NewRun,
    continue_run,
    is_same_graph,
    known_before,
    read_replay,
    results_of,
)
from corral._engine.existing_runs import prepare_fork
from corral._engine.follow_run import FollowOptions
from corral._pipelines import loader
from corral.errors import ConfigError


def test_a_fork_continues_from_a_node_and_repeats_nothing_before_it(
    processes: DurableProcesses,
) -> None:
    processes.worker()
    submit(processes, CHAIN)
    assert processes.wait_for_run().status == "success"

    found = asyncio.run(prepare_fork("r", "b", Changes(), db=processes.db))
    follow = FollowOptions(db=processes.db)
    folder = processes.folder / "f"
    forked = asyncio.run(continue_run(found, follow, run_dir=folder, queue="default"))
    closed = processes.wait_for_run(forked.run)
    assert forked.completed == closed.completed
    assert closed.completed == ["start", "a", "b", "c", "exit"]
    assert closed.context["done.a"] == "a.1"
    assert processes.attempt_counts() == {"a.1#1": 1, "b.1#1": 2, "b.1#2": 2, "c.1#1": 2}
    assert asyncio.run(query.show(forked.run, db=processes.db)).run_input.forked_from == "r"
    assert asyncio.run(query.show("r", db=processes.db)).status == "success"


def test_a_fork_from_a_node_that_was_not_visited_is_refused(processes: DurableProcesses) -> None:
    processes.worker()
    submit(processes, CHAIN)
    processes.wait_for_run()
    with pytest.raises(ConfigError, match="was not visited"):
        known_before(asyncio.run(read_replay("r", processes.db)), "nowhere")
    with pytest.raises(ConfigError, match="the pipeline has no node 'nowhere'"):
        asyncio.run(prepare_fork("r", "nowhere", Changes(), db=processes.db))


def test_a_run_continues_with_a_changed_graph(processes: DurableProcesses) -> None:
    worker = processes.worker()
    waits = f'c [type="t.wait", file="{processes.folder}/go"]'
    submit(processes, CHAIN.replace('c [type="t.step"]', waits))
    wait_until(lambda: processes.attempt_counts()["c.1#1"], "the last node to begin")
    processes.kill(worker)
    changed = loader.load(CHAIN)

    replay = asyncio.run(read_replay("r", processes.db))
    known = {each.id: each for each in results_of(replay)}
    found = Continuation(
        run=asyncio.run(query.show("r", db=processes.db)),
        new=NewRun(replay=replay, known=known, graph=changed),
    )
    follow = FollowOptions(db=processes.db)
    with ThreadPoolExecutor(1) as pool:
        continued = pool.submit(lambda: asyncio.run(continue_run(found, follow, queue="default")))
        wait_until(lambda: asyncio.run(query.show("r", db=processes.db)).tries == 2, "another try")
        processes.worker()
        new = continued.result()
    assert new.run == "r"
    assert new.completed == ["start", "a", "b", "c", "exit"]
    assert asyncio.run(query.show("r", db=processes.db)).tries == 2
    assert processes.attempt_counts() == {"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "c.1#1": 2}


def test_a_graph_that_only_moved_in_its_file_has_not_changed() -> None:
    moved = CHAIN.replace("digraph", "// a word\n\n  digraph")
    assert is_same_graph(loader.load(CHAIN), loader.load(moved))
