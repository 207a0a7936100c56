"""Doors to durable runs: look, follow, fork, go on with a changed pipeline, forget."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until

from corral.durable import fork as durable_fork
from corral.durable import query
from corral.errors import ConfigError
from corral.pipelines import loader

CHAIN = """digraph chain {
    goal="be done"
    start [shape=Mdiamond]; exit [shape=Msquare]
    a [type="t.step"]; b [type="t.step", fails=1, max_retries=2]; c [type="t.step"]
    start -> a -> b -> c -> exit
}"""


def followed(world: DurableProcesses, run: str = "r") -> list[str]:
    async def whole() -> list[str]:
        found = list[str]()
        async for event in query.follow(run, db=world.db):
            kind = json.loads(doors_json(event))["type"]
            found.append(f"{kind} {event.node}" if event.node else kind)
        return found

    return asyncio.run(asyncio.wait_for(whole(), 60))


def doors_json(event: object) -> bytes:
    from corral.pipelines import events

    return events.to_json(event)  # type: ignore[arg-type]


def test_a_run_is_followed_from_its_first_event_to_its_last(world: DurableProcesses) -> None:
    world.worker()
    submit(world, CHAIN)
    found = followed(world)
    assert found[:3] == ["pipeline_started", "step_started start", "step_completed start"]
    assert [each for each in found if each.endswith(" b")] == [
        "step_started b",
        "step_retrying b",
        "step_completed b",
        "checkpoint_saved b",
    ]
    assert found[-1] == "pipeline_completed"
    assert found == followed(world)  # again, when it is over
    written = (world.folder / "r" / "events.ndjson").read_text().splitlines()
    assert [json.loads(line)["type"] for line in written] == [each.split()[0] for each in found]


def test_what_an_agent_says_comes_between_the_beginning_and_the_end_of_its_node(
    file_world: DurableProcesses,
) -> None:
    world = file_world
    world.worker()
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' talk [prompt="hello"]; start -> talk -> exit }'
    )
    submit(world, graph, simulate=True)
    found = followed(world)
    assert world.wait_for_run().status == "success"
    assert found.index("step_started talk") < found.index("step_completed talk")


def test_a_run_is_shown_with_all_that_came_of_it(world: DurableProcesses) -> None:
    world.worker()
    submit(world, CHAIN)
    assert world.wait_for_run().status == "success"
    shown = asyncio.run(query.show("r", db=world.db))
    assert shown.status == "success"
    assert shown.state.completed == ["start", "a", "b", "c", "exit"]
    assert shown.state.outcomes["b"].attempts == 2
    assert shown.graph.goal == "be done"
    (listed,) = asyncio.run(query.list_runs(db=world.db))
    assert (listed.id, listed.pipeline, listed.goal) == ("r", "chain", "be done")
    assert listed.status == "success"
    assert listed.ended is not None


def test_a_failed_run_is_listed_as_failed(world: DurableProcesses) -> None:
    world.worker()
    submit(
        world,
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' bad [shape=parallelogram, tool_command="false"];'
        ' start -> bad; bad -> exit [condition="outcome=success"] }',
    )
    assert world.wait_for_run().status == "fail"
    (listed,) = asyncio.run(query.list_runs(db=world.db))
    assert listed.status == "fail"


def test_a_folder_that_is_gone_is_written_again(file_world: DurableProcesses) -> None:
    world = file_world
    graph = CHAIN.replace('c [type="t.step"]', f'c [type="t.wait", file="{world.folder}/go"]')
    run = world.run(graph)
    wait_until(lambda: world.attempt_counts()["c.1#1"], "the last node to begin")
    world.kill(run)
    shutil.rmtree(world.folder / "r")
    (world.folder / "go").touch()
    assert world.wait(world.run(graph)) == 0, world.output()
    checkpoint = json.loads((world.folder / "r" / "checkpoint.json").read_text())
    assert checkpoint["completed_nodes"] == ["start", "a", "b", "c", "exit"]
    types = [
        json.loads(line)["type"]
        for line in (world.folder / "r" / "events.ndjson").read_text().splitlines()
    ]
    assert types[0] == "pipeline_started"
    assert types.count("step_completed") == 5
    assert types[-1] == "pipeline_completed"


def test_a_folder_that_cannot_be_written_does_not_cost_the_run(
    file_world: DurableProcesses,
) -> None:
    world = file_world
    (world.folder / "r").write_text("in the way")
    assert world.wait(world.run(CHAIN)) == 0, world.output()
    assert "cannot write the run folder" in world.wait_for_run().outcomes["a"].failure_reason


def test_a_fork_goes_on_from_a_node_and_does_nothing_before_it_again(
    world: DurableProcesses,
) -> None:
    world.worker()
    submit(world, CHAIN)
    assert world.wait_for_run().status == "success"

    async def fork() -> str:
        return await durable_fork.fork(
            "r", "b", folder=world.folder / "f", db=world.db, queue="default", run_id="f"
        )

    assert asyncio.run(fork()) == "f"
    closed = world.wait_for_run("f")
    assert closed.completed == ["start", "a", "b", "c", "exit"]
    assert closed.context["done.a"] == "a.1"
    assert world.attempt_counts() == {"a.1#1": 1, "b.1#1": 2, "b.1#2": 2, "c.1#1": 2}
    assert asyncio.run(query.show("f", db=world.db)).run_input.forked_from == "r"


def test_a_fork_from_where_the_run_has_not_been_is_refused(world: DurableProcesses) -> None:
    world.worker()
    submit(world, CHAIN)
    world.wait_for_run()
    with pytest.raises(ConfigError, match="was not visited"):
        asyncio.run(durable_fork.fork("r", "nowhere", folder=world.folder / "f", db=world.db))


def test_a_changed_pipeline_is_refused_unless_it_is_accepted(world: DurableProcesses) -> None:
    world.worker()
    waits = f'c [type="t.wait", file="{world.folder}/go"]'
    submit(world, CHAIN.replace('c [type="t.step"]', waits))
    wait_until(lambda: world.attempt_counts()["c.1#1"], "the last node to begin")
    changed = loader.load(CHAIN)

    async def go_on(accept: bool) -> str:
        return await durable_fork.resume_with_changed_graph(
            "r",
            changed,
            folder=world.folder / "n",
            accept_changed_graph=accept,
            db=world.db,
            queue="default",
        )

    with pytest.raises(ConfigError, match="has changed since it started"):
        asyncio.run(go_on(False))
    new = asyncio.run(go_on(True))
    assert new != "r"
    assert world.wait_for_run(new).completed == ["start", "a", "b", "c", "exit"]
    assert world.wait_for_run("r").status == "cancelled"
    assert world.attempt_counts() == {"a.1#1": 1, "b.1#1": 1, "b.1#2": 1, "c.1#1": 2}


def test_a_pipeline_that_only_moved_in_its_file_has_not_changed() -> None:
    moved = CHAIN.replace("digraph", "// a word\n\n  digraph")
    assert durable_fork.is_same_graph(loader.load(CHAIN), loader.load(moved))


def test_a_pipeline_in_a_pipeline_is_a_run_of_its_own(world: DurableProcesses) -> None:
    (world.workspace / "inner.dot").write_text(
        "digraph inner { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' x [type="t.step"]; start -> x -> exit }'
    )
    world.worker()
    submit(
        world,
        "digraph outer { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' in [type=include, dotfile="inner.dot"]; y [type="t.step"]; start -> in -> y -> exit }',
    )
    closed = world.wait_for_run()
    assert closed.completed == ["start", "in", "y", "exit"]
    assert closed.context["done.x"] == "x.1"
    assert world.attempt_counts() == {"x.1#1": 1, "y.1#1": 1}
    assert [each.id for each in asyncio.run(query.list_runs(db=world.db))] == ["r"]
    assert Path(world.folder / "r/in/child/checkpoint.json").exists()


def test_a_pipeline_in_a_pipeline_that_is_not_there_fails_its_node(world: DurableProcesses) -> None:
    world.worker()
    submit(
        world,
        "digraph outer { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' in [type=include, dotfile="gone.dot"]; start -> in -> exit }',
    )
    assert "gone.dot" in world.wait_for_run().outcomes["in"].failure_reason
