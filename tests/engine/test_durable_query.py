"""List, show and follow durable runs."""

from __future__ import annotations

import asyncio
import json

from support.durable_processes import CHAIN, DurableProcesses, submit

from corral._engine import query, run_list


def followed(processes: DurableProcesses, run: str = "r") -> list[str]:
    async def scenario() -> list[str]:
        found = list[str]()
        async for event in query.follow(run, db=processes.db):
            kind = json.loads(event_json(event))["type"]
            found.append(f"{kind} {event.node}" if event.node else kind)
        return found

    return asyncio.run(asyncio.wait_for(scenario(), 60))


def event_json(event: object) -> bytes:
    from corral._pipelines import events

    return events.to_json(event)  # type: ignore[arg-type]


def test_following_a_run_gives_all_events(processes: DurableProcesses) -> None:
    processes.worker()
    submit(processes, CHAIN)
    found = followed(processes)
    assert found[:3] == ["pipeline_started", "step_started start", "step_completed start"]
    assert [each for each in found if each.endswith(" b")] == [
        "step_started b",
        "step_retrying b",
        "step_completed b",
        "checkpoint_saved b",
    ]
    assert found[-1] == "pipeline_completed"
    assert found == followed(processes)  # again, when it is over
    written = (processes.folder / "r" / "events.ndjson").read_text().splitlines()
    assert [json.loads(line)["type"] for line in written] == [each.split()[0] for each in found]


def test_events_of_an_agent_come_between_start_and_end_of_its_node(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    processes.worker()
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' talk [prompt="hello"]; start -> talk -> exit }'
    )
    submit(processes, graph, simulate=True)
    found = followed(processes)
    assert processes.wait_for_run().status == "success"
    assert found.index("step_started talk") < found.index("step_completed talk")


def test_show_gives_the_state_of_a_run(processes: DurableProcesses) -> None:
    processes.worker()
    submit(processes, CHAIN)
    assert processes.wait_for_run().status == "success"
    shown = asyncio.run(query.show("r", db=processes.db))
    assert shown.status == "success"
    assert shown.state.completed == ["start", "a", "b", "c", "exit"]
    assert shown.state.outcomes["b"].attempts == 2
    assert shown.graph.goal == "be done"
    (listed,) = asyncio.run(run_list.list_runs(db=processes.db))
    assert (listed.id, listed.pipeline, listed.goal) == ("r", "chain", "be done")
    assert listed.status == "success"
    assert listed.ended is not None


def test_a_failed_run_is_listed_as_failed(processes: DurableProcesses) -> None:
    processes.worker()
    submit(
        processes,
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' bad [shape=parallelogram, tool_command="false"];'
        ' start -> bad; bad -> exit [condition="outcome=success"] }',
    )
    assert processes.wait_for_run().status == "fail"
    (listed,) = asyncio.run(run_list.list_runs(db=processes.db))
    assert listed.status == "fail"
