"""How a pipeline run is shown: the edges of the graph that it took."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral import pipelines
from corral._pipelines.events import PipelineEvent, RunEvent, StepCompleted, StepFailed
from corral._pipelines.loader import read
from corral._view import pipeline_view

BRANCHES = """digraph build {{
    start [shape=Mdiamond]; done [shape=Msquare]
    fork [shape=component]
    node [shape=parallelogram, tool_command="true"]
    lint; test; docs [tool_command="{docs}"]; merge [{merge}]; deploy
    start -> fork -> lint -> merge
    fork -> test -> merge
    fork -> docs -> merge
    merge -> deploy -> done
}}"""


async def edges_taken(text: str, workspace: Path) -> dict[str, int]:
    """How often a run in memory took each edge: ``source target`` -> count."""
    seen: list[PipelineEvent] = []

    def keep(event: RunEvent) -> None:
        if isinstance(event, PipelineEvent):
            seen.append(event)

    await pipelines.run(text, durable=False, cwd=workspace, on_event=keep)
    graph = read(text)
    counts = {f"{edge.source} {edge.target}": 0 for edge in graph.edges}
    for event in pipeline_view.narrate(graph, seen):
        for number in event.edges:
            counts[f"{graph.edges[number].source} {graph.edges[number].target}"] += 1
    return counts


@pytest.mark.parametrize("merge", ["", "shape=tripleoctagon"], ids=["plain join", "fan-in"])
@pytest.mark.parametrize("docs", ["true", "false"], ids=["all arrive", "one fails"])
async def test_all_edges_of_the_branches_that_meet_are_taken(
    merge: str, docs: str, workspace: Path
) -> None:
    taken = await edges_taken(BRANCHES.format(merge=merge, docs=docs), workspace)
    assert taken.pop("docs merge") == (docs == "true")
    assert set(taken.values()) == {1}


async def test_a_loop_takes_the_edge_that_leads_back_and_no_other(workspace: Path) -> None:
    taken = await edges_taken(
        """digraph loop {
            start [shape=Mdiamond]; done [shape=Msquare]
            node [shape=parallelogram]
            count [tool_command="echo >> seen; test $(wc -l < seen) = 2"]
            again [tool_command="true"]
            start -> count -> done
            count -> again [condition="outcome=fail"]
            again -> count
        }""",
        workspace,
    )
    assert taken == {"start count": 1, "count done": 1, "count again": 1, "again count": 1}


async def test_each_visit_ends_when_its_step_completed_or_failed(workspace: Path) -> None:
    ended: dict[str, float] = {}

    def keep(event: RunEvent) -> None:
        if isinstance(event, StepCompleted | StepFailed):
            ended[event.visit] = event.ts

    graph = """digraph ends {
        start [shape=Mdiamond]; done [shape=Msquare]
        node [shape=parallelogram]
        fails [tool_command="false"]; completes [tool_command="true"]
        start -> fails; completes -> done
        fails -> completes [condition="outcome=fail"]
    }"""
    result = await pipelines.run(graph, durable=False, cwd=workspace, on_event=keep)
    shown = await pipeline_view.detail(await pipeline_view.read(result.run, None), None)
    assert {visit.node: visit.status for visit in shown.path}["fails"] == "fail"
    assert {visit.visit: visit.ended for visit in shown.path} == ended
    assert {node.visit: node.ended for node in shown.graph.nodes if node.visits} == ended
