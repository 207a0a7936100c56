"""Budgets of batches: tasks that run at the same time stay within them together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.batches import MODEL, CountingModel

import corral
from corral.testing import Call, ModelServer, Request, Turn

pytestmark = pytest.mark.whole_program

TASKS = [{"id": f"t{n}", "n": n} for n in range(8)]
BOTH = pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])


@pytest.fixture
def model(
    model_server: ModelServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> CountingModel:
    made = CountingModel(model_server, request.node.nodeid)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


def begin(workspace: Path, **given: Any) -> corral.Batch:
    options: dict[str, Any] = {"model": MODEL, "cwd": workspace, **given}
    batch: Callable[..., corral.Batch] = corral.batch
    return batch(TASKS, "task {{id}}", **options)


@BOTH
@pytest.mark.deep_but_first
async def test_tasks_at_the_same_time_do_not_exceed_the_budget_and_a_larger_one_continues(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    def twice(task: str, _request: Request) -> Turn | None:
        is_first = model.counts[task] == 1
        return Turn(calls=[Call("read_file", {"path": "x"})]) if is_first else None

    model.special = twice
    file = workspace / "r.jsonl"
    options: dict[str, Any] = {"durable": durable, "results": file, "concurrency": 8}
    first = await begin(workspace, max_calls=9, policy="reads", **options)
    assert model.counts.total() == 9
    assert first.stopped == "budget"
    assert first.succeeded <= 4
    assert {each.code for each in first.failures} == {"budget_exceeded"}
    second = await begin(workspace, max_calls=60, policy="reads", **options)
    assert second.ok
    assert second.stopped == ""
    assert model.counts.total() <= 9 + 16


@BOTH
@pytest.mark.deep_but_first
async def test_a_task_has_its_own_limit_within_the_budget(
    model: CountingModel, workspace: Path, durable: bool
) -> None:
    forever = Turn(calls=[Call("read_file", {"path": "x"})])
    model.special = lambda task, _request: forever if task == "t1" else None
    report = await begin(
        workspace, durable=durable, task={"max_calls": 2}, max_calls=30, policy="reads", attempts=1
    )
    assert model.counts == {each["id"]: 2 if each["id"] == "t1" else 1 for each in TASKS}
    assert report.stopped == ""
    assert report.succeeded == 7
    assert [(each.code, each.tasks) for each in report.failures] == [("budget_exceeded", ("t1",))]


@pytest.mark.parametrize(
    "given", [{"max_calls": 0}, {"max_total_tokens": -5}, {"task": {"max_cost": 0.0}}]
)
async def test_a_limit_must_be_positive(
    model: CountingModel, workspace: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(corral.CorralError, match="must be more than 0"):
        await begin(workspace, **given)
    assert model.counts.total() == 0
