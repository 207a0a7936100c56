"""A new run that continues another from a node, or with a changed graph."""

from __future__ import annotations

import asyncio

import pytest
from support.durable_processes import CHAIN, DurableProcesses, submit, wait_until

from corral._engine import fork as durable_fork
from corral._engine import query
from corral._pipelines import loader
from corral.errors import ConfigError


def test_a_fork_continues_from_a_node_and_repeats_nothing_before_it(
    processes: DurableProcesses,
) -> None:
    processes.worker()
    submit(processes, CHAIN)
    assert processes.wait_for_run().status == "success"

    async def fork() -> str:
        return await durable_fork.fork(
            "r", "b", folder=processes.folder / "f", db=processes.db, queue="default", run_id="f"
        )

    assert asyncio.run(fork()) == "f"
    closed = processes.wait_for_run("f")
    assert closed.completed == ["start", "a", "b", "c", "exit"]
    assert closed.context["done.a"] == "a.1"
    assert processes.attempt_counts() == {"a.1#1": 1, "b.1#1": 2, "b.1#2": 2, "c.1#1": 2}
    assert asyncio.run(query.show("f", db=processes.db)).run_input.forked_from == "r"


def test_a_fork_from_a_node_that_was_not_visited_is_refused(processes: DurableProcesses) -> None:
    processes.worker()
    submit(processes, CHAIN)
    processes.wait_for_run()
    with pytest.raises(ConfigError, match="was not visited"):
        asyncio.run(
            durable_fork.fork("r", "nowhere", folder=processes.folder / "f", db=processes.db)
        )


def test_a_run_continues_with_a_changed_graph(processes: DurableProcesses) -> None:
    processes.worker()
    waits = f'c [type="t.wait", file="{processes.folder}/go"]'
    submit(processes, CHAIN.replace('c [type="t.step"]', waits))
    wait_until(lambda: processes.attempt_counts()["c.1#1"], "the last node to begin")
    changed = loader.load(CHAIN)

    new = asyncio.run(
        durable_fork.continue_with_graph(
            "r", changed, folder=processes.folder / "n", db=processes.db, queue="default"
        )
    )
    assert new != "r"
    assert processes.wait_for_run(new).completed == ["start", "a", "b", "c", "exit"]
    assert processes.wait_for_run("r").status == "cancelled"
    assert processes.attempt_counts() == {"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "c.1#1": 2}


def test_a_graph_that_only_moved_in_its_file_has_not_changed() -> None:
    moved = CHAIN.replace("digraph", "// a word\n\n  digraph")
    assert durable_fork.is_same_graph(loader.load(CHAIN), loader.load(moved))
