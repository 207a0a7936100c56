"""Batches on a queue of workers, on a server without workers, and with warm agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.batches import results_of
from support.durable_processes import DurableProcesses
from support.scripted_agent import child_pids

import corral
from corral._engine.worker import executor
from corral.testing import Request, Turn, say

if TYPE_CHECKING:
    from support.real_agents import RealAgent

TASKS = [{"id": f"t{n}"} for n in range(30)]


async def test_workers_finish_a_batch_although_one_is_killed(processes: DurableProcesses) -> None:
    first = processes.worker()
    processes.worker()
    file = processes.workspace / "r.jsonl"
    killed = False

    def on_result(_result: corral.BatchResult, report: corral.BatchReport) -> None:
        nonlocal killed
        if report.succeeded >= 5 and not killed:
            killed = True
            processes.kill(first)

    report = await corral.batch(
        TASKS,
        "task {{id}}",
        simulate=True,
        db=processes.db,
        queue="default",
        results=file,
        concurrency=6,
        cwd=processes.workspace,
        on_result=on_result,
    )
    assert report.ok, report.failures
    assert killed
    assert executor.running() is None
    assert len(results_of(file)) == 30


@pytest.mark.deep
async def test_a_batch_on_a_server_runs_in_this_process_without_workers(
    new_postgres: str, workspace: Path
) -> None:
    for times in (1, 2):
        report = await corral.batch(
            TASKS[:8],
            "task {{id}}",
            simulate=True,
            db=new_postgres,
            name="here",
            cwd=workspace,
        )
        assert report.ok
        assert report.earlier == (0 if times == 1 else 8)


@pytest.mark.deep
@pytest.mark.gemini_cli
@pytest.mark.timeout(240)
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
async def test_warm_agents_serve_many_tasks(gemini: RealAgent, durable: bool) -> None:
    def answer(request: Request) -> Turn:
        return say(f"answer to {request.last_text.split()[-1]}")

    options: dict[str, Any] = {**gemini.options(answer), "timeout": 200.0}
    before = child_pids()
    seen: list[int] = []

    def on_result(_result: corral.BatchResult, _report: corral.BatchReport) -> None:
        seen.append(len(set(child_pids()) - set(before)))

    batch: Callable[..., corral.Batch] = corral.batch
    report = await batch(
        [{"id": f"t{n}"} for n in range(6)],
        "question {{id}}",
        agent="gemini-acp",
        durable=durable,
        concurrency=6,
        on_result=on_result,
        **options,
    )
    assert [each.text for each in report.results] == [f"answer to t{n}" for n in range(6)]
    assert durable or max(seen) <= 2  # of four prompts each
    assert set(child_pids()) <= set(before)
