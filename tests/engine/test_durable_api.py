"""``pipelines.run_sync``: runs for code that is not async."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral import pipelines, runs
from corral._engine import query, run_list

PIPELINE = "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit }"


def run(tmp_path: Path, *, durable: bool) -> pipelines.PipelineResult:
    return pipelines.run_sync(
        PIPELINE,
        simulate=True,
        durable=durable,
        db=str(tmp_path / "runs.db") if durable else None,
        run_dir=tmp_path / "run",
        cwd=tmp_path,
    )


@pytest.mark.parametrize("durable", [False, True])
async def test_run_sync_works_inside_a_running_event_loop(tmp_path: Path, durable: bool) -> None:
    with pytest.warns(RuntimeWarning, match="run_sync stops the running event loop"):
        result = run(tmp_path, durable=durable)
    assert (result.status, result.completed) == ("success", ["start", "a", "exit"])


def test_run_sync_works_without_an_event_loop(tmp_path: Path) -> None:
    assert run(tmp_path, durable=False).status == "success"


GATE = """digraph gate {
    start [shape=Mdiamond]; exit [shape=Msquare]; ask [shape=hexagon, label="Ship it?"]
    start -> ask; ask -> ship [label="[Y] Yes"]; ask -> exit [label="[N] No"]; ship -> exit
}"""


@pytest.mark.deep
def test_a_run_is_answered_and_continued_by_code_that_is_not_async(tmp_path: Path) -> None:
    db = str(tmp_path / "runs.db")
    waiting = pipelines.run_sync(GATE, simulate=True, db=db, cwd=tmp_path)
    assert waiting.status == "waiting"
    runs.answer_sync(waiting.run, "Y", db=db)
    done = runs.resume_sync(waiting.run, db=db)
    assert (done.status, done.completed) == ("success", ["start", "ask", "ship", "exit"])
    second = runs.fork_sync(waiting.run, "ask", db=db)
    assert second.status == "waiting"
    runs.cancel_sync(second.run, reason="enough", db=db)
    assert {each.id for each in asyncio.run(run_list.list_runs(db=db))} == {waiting.run, second.run}
    shown = asyncio.run(query.show(waiting.run, db=db))
    assert shown.state.completed == ["start", "ask", "ship", "exit"]
