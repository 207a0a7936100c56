"""A pipeline that is no success goes on under its id, in each state, with what is finished."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support import workflow_files

from corral import pipelines, runs
from corral._engine import query, run_list, service
from corral._engine.continue_run import Changes
from corral.errors import ConfigError

GRAPH = """digraph work {{
    {attrs}
    start [shape=Mdiamond]
    first [shape=parallelogram, tool_command="echo first >> log"]
    second [shape=parallelogram, tool_command="echo second >> log; {second}"]
    done [shape=Msquare]
    start -> first -> second -> done
}}"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "runs.db")


def start(folder: Path, db: str, *, second: str = "test -f fixed", **options: Any) -> str:
    file = folder / "work.dot"
    file.write_text(GRAPH.format(attrs=options.pop("attrs", ""), second=second))
    return pipelines.run_sync(file, cwd=folder, db=db, run_id="r", **options).status


def logged(folder: Path) -> list[str]:
    return (folder / "log").read_text().split()


def test_a_pipeline_that_failed_goes_on_with_the_node_that_failed(tmp_path: Path, db: str) -> None:
    assert start(tmp_path, db) == "fail"
    assert runs.resume_sync("r", db=db).status == "fail"
    (tmp_path / "fixed").touch()
    done = runs.resume_sync("r", db=db)
    assert (done.run, done.status) == ("r", "success")
    assert logged(tmp_path) == ["first", "second", "second", "second"]
    (row,) = asyncio.run(run_list.list_runs(db=db))
    assert (row.id, row.status, row.tries) == ("r", "success", 3)
    # Of a success, the result; nothing runs.
    assert runs.resume_sync("r", db=db).status == "success"
    assert len(logged(tmp_path)) == 4


def test_a_pipeline_with_a_handled_failure_repeats_only_what_ended_it(
    tmp_path: Path, db: str
) -> None:
    graph = """digraph work {
        start [shape=Mdiamond]
        tries [shape=parallelogram, tool_command="echo tries >> log; false"]
        repair [shape=parallelogram, tool_command="echo repair >> log"]
        last [shape=parallelogram, tool_command="echo last >> log; test -f fixed"]
        done [shape=Msquare]
        start -> tries
        tries -> done [condition="outcome=success"]
        tries -> repair [condition="outcome=fail"]
        repair -> last -> done
    }"""
    first = pipelines.run_sync(graph, cwd=tmp_path, db=db, run_id="r")
    assert first.status == "fail"
    (tmp_path / "fixed").touch()
    assert runs.resume_sync("r", db=db).ok
    assert logged(tmp_path) == ["tries", "repair", "last", "last"]


def test_a_goal_gate_that_was_not_met_is_tried_again(tmp_path: Path, db: str) -> None:
    graph = """digraph work {
        start [shape=Mdiamond]
        gate [shape=parallelogram, goal_gate=true, tool_command="echo gate >> log; test -f fixed"]
        after [shape=parallelogram, tool_command="echo after >> log"]
        done [shape=Msquare]
        start -> gate
        gate -> after [condition="outcome=fail"]
        gate -> done [condition="outcome=success"]
        after -> done
    }"""
    failed = pipelines.run_sync(graph, cwd=tmp_path, db=db, run_id="r")
    assert "goal gate" in failed.reason
    (tmp_path / "fixed").touch()
    assert runs.resume_sync("r", db=db).ok
    assert logged(tmp_path) == ["gate", "after", "gate"]


def test_a_gate_that_was_refused_is_asked_again(tmp_path: Path, db: str) -> None:
    graph = """digraph work {
        start [shape=Mdiamond]
        first [shape=parallelogram, tool_command="echo first >> log"]
        gate [shape=hexagon]
        done [shape=Msquare]
        start -> first -> gate
        gate -> done [label="Yes"]
    }"""
    asked = pipelines.run_sync(graph, cwd=tmp_path, db=db, run_id="r")
    assert asked.status == "waiting"
    runs.answer_sync("r", skip=True, db=db)
    assert runs.resume_sync("r", db=db).status == "fail"
    assert runs.resume_sync("r", db=db).status == "waiting"
    runs.answer_sync("r", "Yes", db=db)
    assert runs.resume_sync("r", db=db).ok
    assert logged(tmp_path) == ["first"]


def test_a_pipeline_that_was_cancelled_goes_on(tmp_path: Path, db: str) -> None:
    graph = """digraph work {
        start [shape=Mdiamond]
        first [shape=parallelogram, tool_command="echo first >> log"]
        gate [shape=hexagon]
        done [shape=Msquare]
        start -> first -> gate
        gate -> done [label="Yes"]
    }"""
    pipelines.run_sync(graph, cwd=tmp_path, db=db, run_id="r")
    runs.cancel_sync("r", reason="enough", db=db)
    assert asyncio.run(query.show("r", db=db)).status == "cancelled"
    done = runs.resume_sync("r", db=db, interviewer=pipelines.AutoApprove())
    assert done.ok, done.reason
    assert logged(tmp_path) == ["first"]


def test_a_changed_file_is_taken_only_if_that_is_accepted(tmp_path: Path, db: str) -> None:
    start(tmp_path, db)
    file = tmp_path / "work.dot"
    file.write_text(file.read_text().replace("test -f fixed", "true"))
    with pytest.raises(ConfigError, match="has changed since it started"):
        runs.resume_sync("r", db=db)
    assert runs.resume_sync("r", accept_changed=True, db=db).ok
    assert logged(tmp_path) == ["first", "second", "second"]


def test_a_resumed_run_has_the_cost_and_the_files_of_all_its_tries(tmp_path: Path, db: str) -> None:
    assert start(tmp_path, db) == "fail"
    before = asyncio.run(query.show("r", db=db))
    (tmp_path / "fixed").touch()
    done = runs.resume_sync("r", db=db)
    assert done.folder == before.folder
    output = Path(done.folder, "first", "tool_output.txt")
    assert output.exists()
    shown = asyncio.run(query.show("r", db=db))
    assert shown.created == before.created
    assert [*shown.state.completed] == ["start", "first", "second", "done"]


def test_of_two_processes_that_resume_a_run_one_is_refused(tmp_path: Path, db: str) -> None:
    start(tmp_path, db)
    (tmp_path / "fixed").touch()

    async def both() -> list[object]:
        work = (runs.resume("r", db=db) for _ in range(2))
        return [*await asyncio.gather(*work, return_exceptions=True)]

    results = asyncio.run(both())
    refused = [each.message for each in results if isinstance(each, ConfigError)]
    assert refused == ["another process has just resumed r"], results
    assert logged(tmp_path) == ["first", "second", "second"]


def test_cancel_and_show_of_a_run_mean_its_last_try(tmp_path: Path, db: str) -> None:
    start(tmp_path, db)
    assert runs.resume_sync("r", db=db).status == "fail"
    asyncio.run(service.cancel("r", db=db))  # it has ended
    assert asyncio.run(query.show("r", db=db)).tries == 2


def test_a_try_that_ended_before_it_came_to_what_is_finished_keeps_it(
    tmp_path: Path, db: str
) -> None:
    start(tmp_path, db)
    file, new = tmp_path / "work.dot", 'new [shape=parallelogram, tool_command="echo new >> log"]'
    file.write_text(file.read_text().replace("start -> first", f"{new}\nstart -> new -> first"))
    accepts = Changes(accept_changed=True)
    asyncio.run(workflow_files.cancel_unstarted_try("r", db, accepts))
    (tmp_path / "fixed").touch()
    assert runs.resume_sync("r", db=db).ok
    assert logged(tmp_path) == ["first", "second", "new", "second"]
