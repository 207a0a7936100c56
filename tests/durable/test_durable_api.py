"""``pipelines.run_sync``: runs for code that is not async."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral import pipelines

PIPELINE = "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit }"


def run(tmp_path: Path, *, durable: bool) -> pipelines.PipelineResult:
    return pipelines.run_sync(
        PIPELINE,
        simulate=True,
        durable=durable,
        db=str(tmp_path / "runs.db") if durable else None,
        run_dir=tmp_path / "run",
        workspace=tmp_path,
    )


@pytest.mark.parametrize("durable", [False, True])
async def test_run_sync_works_inside_a_running_event_loop(tmp_path: Path, durable: bool) -> None:
    with pytest.warns(RuntimeWarning, match="run_sync stops the running event loop"):
        result = run(tmp_path, durable=durable)
    assert (result.status, result.completed) == ("success", ["start", "a", "exit"])


def test_run_sync_works_without_an_event_loop(tmp_path: Path) -> None:
    assert run(tmp_path, durable=False).status == "success"
