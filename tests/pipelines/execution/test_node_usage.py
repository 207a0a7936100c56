"""What the agents of nodes and tasks used is in the report of ``corral runs usage``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.batches import MODEL, CountingModel

import corral
from corral import pipelines
from corral._metering.turn_usage import UsageQuery, UsageSum
from corral._sessions import index
from corral.testing import ModelServer

pytestmark = pytest.mark.whole_program

GRAPH = f"""digraph review {{
    start [shape=Mdiamond]
    one [prompt="task one", agent="{MODEL}"]
    two [prompt="task two", agent="{MODEL}"]
    three [type=prompt, prompt="task three", model="{MODEL}"]
    done [shape=Msquare]
    start -> one -> two -> three -> done
}}"""


@pytest.fixture
def model(
    model_server: ModelServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CountingModel:
    made = CountingModel(model_server, request.node.nodeid)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


def rows(by: str) -> list[UsageSum]:
    return index.usage_report(UsageQuery(by=by)).rows


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@pytest.mark.deep_but_first
async def test_the_nodes_of_a_pipeline_and_the_tasks_of_a_batch_are_counted(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    result = await pipelines.run(GRAPH, cwd=workspace, durable=durable)
    assert result.status == "success", result
    [pipeline] = rows("kind")
    assert (pipeline.turns, pipeline.calls, pipeline.sessions) == (3, 2, 1)
    assert pipeline.usage.total
    assert sorted((row.key, row.turns) for row in rows("agent")) == [("corral", 2), ("prompt", 1)]
    tasks = [{"id": f"t{n}", "n": n} for n in range(3)]
    report = await corral.batch(
        tasks, "task {{id}}", model=MODEL, cwd=workspace, durable=durable, name="many"
    )
    assert report.succeeded == 3
    [batch] = [row for row in rows("kind") if row.key == "batch"]
    assert (batch.turns, batch.calls) == (3, 3)
    total = index.usage_report(UsageQuery()).total
    assert (total.turns, total.calls, total.turns_partial) == (6, 5, 0)
    assert total.usage.total == (pipeline.usage.total or 0) + (batch.usage.total or 0)
