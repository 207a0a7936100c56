"""Pipelines and batches in a real ``corral view`` process, with a real database."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.batches import MODEL, CountingModel
from support.pipeline_command import GATE, corral
from support.view_server import WAIT, running_view

from corral import Batch, BatchReport, pipelines
from corral import batch as corral_batch
from corral.testing import ModelServer, fail

pytestmark = [pytest.mark.whole_program, pytest.mark.worker_process]


async def until(read: Callable[[], Awaitable[Any]], is_done: Callable[[Any], bool]) -> Any:
    """Ask until the answer is the wanted one."""
    async with asyncio.timeout(WAIT):
        while not is_done(found := await read()):
            await asyncio.sleep(0.2)
    return found


@pytest.mark.deep
async def test_an_answer_that_cannot_be_read_hides_no_run(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "gate.dot").write_text(GATE)
    ended = await asyncio.to_thread(corral, "pipeline", "run", "gate.dot", cwd=work)
    assert ended.returncode == 10, ended.stderr
    with closing(sqlite3.connect(tmp_path / "corral-home" / "engine.db")) as opened:
        opened.execute(
            "INSERT INTO notifications (message_uuid, destination_uuid, topic, message,"
            " serialization) SELECT 'answered ask.1::' || workflow_uuid, workflow_uuid, 'inbox',"
            " '{', 'portable_json' FROM workflow_status WHERE parent_workflow_id IS NULL"
        )
        opened.commit()
    with running_view(tmp_path / "corral-home") as view:
        found = await view.get("/api/runs", kind="pipeline")
        assert [run["state"] for run in found["runs"]] == ["waiting_person"]
        assert "cannot be read" in found["warnings"][0]


@pytest.mark.deep
async def test_a_gate_is_answered_after_its_process_ended_and_a_node_is_run_again(
    tmp_path: Path,
) -> None:
    home, work = tmp_path / "corral-home", tmp_path / "work"
    work.mkdir()
    (work / "gate.dot").write_text(GATE)
    ended = await asyncio.to_thread(corral, "pipeline", "run", "gate.dot", cwd=work)
    assert ended.returncode == 10, ended.stderr  # it waits for a person
    with running_view(home) as view:
        (run,) = (await view.get("/api/runs", kind="pipeline"))["runs"]
        assert (run["state"], run["pending"]) == ("waiting_person", 1)
        (pending,) = (await view.get("/api/server"))["pending"]
        assert (pending["text"], pending["choices"]) == ("Ship it?", ["Yes", "No"])
        path = f"/api/pipelines/{run['id']}"
        detail = await view.get(path)
        assert [node["state"] for node in detail["graph"]["nodes"]][:3] == [
            *("success", "waiting"),
            "idle",
        ]
        assert detail["graph"]["svg"].count("data-edge") == 5
        assert "style" not in detail["graph"]["svg"]
        status, refused = await view.post(f"{path}/answer", {"text": "Perhaps"})
        assert (status, "Perhaps" in refused["error"]["message"]) == (400, True)
        gate = detail["questions"][0]["request_id"]
        reply = {"text": "Yes", "comment": "well done", "gate": gate}
        status, done = await view.post(f"{path}/answer", reply)
        assert status == 200, done
        detail = await until(
            lambda: view.get(path), lambda each: each["summary"]["state"] == "success"
        )
        assert [visit["node"] for visit in detail["path"]] == ["start", "ask", "ship", "done"]
        taken = {(edge["from"], edge["to"]): edge["taken"] for edge in detail["graph"]["edges"]}
        assert (taken["ask", "ship"], taken["ask", "keep"]) == (1, 0)
        found = (await view.get(f"{path}/events"))["events"]
        assert [each["seq"] for each in found] == sorted({each["seq"] for each in found})
        assert any(each["text"] == "Yes: well done" for each in found), found
        later = await view.get(f"{path}/events", after=found[-2]["seq"])
        assert later["events"] == found[-1:]
        status, late = await view.post(f"{path}/cancel", {})
        assert (status, "ended" in late["error"]["message"]) == (400, True)
        status, started = await view.post(f"{path}/retry", {"node": "ship"})
        assert status == 200, started
        forked = await until(
            lambda: view.get(f"/api/pipelines/{started['id']}"),
            lambda each: each["summary"]["state"] == "success",
        )
        assert forked["forked_from"] == run["id"]
        await until(lambda: asyncio.to_thread(_logs, home), lambda left: not left)


def _logs(home: Path) -> list[Path]:
    """What the commands that the server started have left."""
    return [*(home / "view").iterdir()]


PAUSED = """digraph work {
    max_calls=1; on_budget=pause
    start [shape=Mdiamond]
    a [prompt="task a"]
    b [prompt="task b {{word}}"]
    done [shape=Msquare]
    start -> a -> b -> done
}"""


@pytest.mark.deep
async def test_a_run_is_started_paused_raised_and_its_context_read(
    tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CountingModel(model_server, "view-budget")
    for name, value in model.env.items():
        monkeypatch.setenv(name, value)
    work = tmp_path / "work"
    work.mkdir()
    (work / "work.dot").write_text(PAUSED)
    body = {"file": "work.dot", "cwd": str(work), "model": MODEL, "values": {"word": "x"}}
    with running_view(tmp_path / "corral-home") as view:
        status, refused = await view.post("/api/pipelines", {**body, "file": "none.dot"})
        assert (status, "none.dot" in refused["error"]["message"]) == (400, True), refused
        status, started = await view.post("/api/pipelines", {**body, "max_calls": 5})
        assert status == 200, started
        path = f"/api/pipelines/{started['id']}"

        async def listed() -> Any:
            return (await view.get("/api/runs"))["runs"]

        (row,) = await until(listed, lambda runs: [each["state"] for each in runs] == ["paused"])
        # The session of the node that waits is not listed as another run.
        assert (row["kind"], row["live"], row["cwd"]) == ("pipeline", True, str(work))
        assert row["cost_usd"] > 0
        detail = await view.get(path)
        assert detail["summary"]["state"] == "paused"
        (budget,) = detail["budgets"]
        assert (budget["max_calls"], budget["calls"], budget["is_paused"]) == (1, 1, True)
        shown = await asyncio.to_thread(corral, "runs", "show", "last", cwd=work)
        assert "state      paused" in shown.stdout
        assert f"corral runs resume {started['id']} --max-calls 2" in shown.stdout
        status, done = await view.post(f"{path}/budget", {"calls": 1})
        assert status == 200, done
        await until(lambda: view.get(path), lambda each: each["summary"]["state"] == "success")
        context = (await view.get(f"{path}/context"))["context"]
        assert context["word"] == "x"
        saved = await view.get(f"{path}/checkpoint")
        assert saved["completed_nodes"] == ["start", "a", "b", "done"]
        assert saved["context"] == context
        assert model.counts == {"a": 1, "b": 1}
        (row,) = await listed()
        assert row["tokens"] > 0
        shown = await asyncio.to_thread(corral, "runs", "show", "last", cwd=work)
        assert re.search(r"cost +(scripted|\$0\.00\d\d) · \d+ tokens", shown.stdout), shown.stdout


@pytest.mark.deep
async def test_a_paused_batch_and_a_run_with_a_paused_child_say_so_and_are_raised(
    tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CountingModel(model_server, "view-batch-budget")
    for name, value in model.env.items():
        monkeypatch.setenv(name, value)
    work = tmp_path / "work"
    work.mkdir()
    (work / "child.dot").write_text(PAUSED.replace(" {{word}}", ""))
    parent = """digraph parent { start [shape=Mdiamond]; done [shape=Msquare]
        call [type=include, dotfile="child.dot"]; start -> call -> done }"""
    batch = asyncio.create_task(
        batch_to_end([1, 2], "task n{{n}}", model=MODEL, cwd=work, max_calls=1, on_budget="pause")
    )
    run = asyncio.create_task(pipelines.run(parent, model=MODEL, cwd=work))
    with running_view(tmp_path / "corral-home") as view:

        async def listed() -> Any:
            return {each["kind"]: each for each in (await view.get("/api/runs"))["runs"]}

        rows = await until(
            listed,
            lambda rows: (
                [rows.get(kind, {}).get("state") for kind in ("batch", "pipeline")]
                == ["paused", "paused"]
            ),
        )
        for kind, names in (("batch", "batches"), ("pipeline", "pipelines")):
            path = f"/api/{names}/{rows[kind]['id']}"
            detail = await view.get(path)
            assert (detail["summary"]["state"], detail["summary"]["live"]) == ("paused", True)
            (budget,) = detail["budgets"]
            assert (budget["max_calls"], budget["is_paused"]) == (1, True)
            status, done = await view.post(f"{path}/budget", {"calls": 1})
            assert status == 200, done
        assert (await batch).ok
        assert (await run).ok
    assert model.counts == {"n1": 1, "n2": 1, "a": 1, "b": 1}


async def batch_to_end(numbers: list[int], prompt: str, **options: Any) -> BatchReport[None]:
    start: Callable[..., Batch[None]] = corral_batch
    return await start([{"n": number} for number in numbers], prompt, **options)


@pytest.mark.deep
async def test_the_failed_tasks_of_a_batch_are_run_again(
    tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = CountingModel(model_server, "view-batch")
    for name, value in model.env.items():
        monkeypatch.setenv(name, value)
    home, work = tmp_path / "corral-home", tmp_path / "work"
    work.mkdir()
    (work / "tasks.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in (1, 2, 3)))
    model.special = lambda task, _request: fail(400, "no such luck") if task == "2" else None
    words = ("batch", "tasks.jsonl", "-p", "task {{n}}", "--model", MODEL, "-o", "out.jsonl")
    ended = await asyncio.to_thread(corral, *words, cwd=work, env=model.env)
    assert ended.returncode == 1, ended.stderr
    with running_view(home) as view:
        (run,) = (await view.get("/api/runs", kind="batch"))["runs"]
        assert run["state"] == "failed"
        path = f"/api/batches/{run['id']}"
        detail = await view.get(path)
        assert (detail["total"], detail["succeeded"], detail["failed"]) == (3, 2, 1)
        assert [row["status"] for row in detail["rows"]] == ["success", "failed", "success"]
        (failure,) = detail["failures"]
        assert failure["tasks"] == ["2"]
        assert re.match(r"corral batch tasks.jsonl", detail["command"])
        only = await view.get(path, failed="yes")
        assert [row["task"] for row in only["rows"]] == ["2"]
        model.special = lambda _task, _request: None
        status, done = await view.post(f"{path}/retry", {})
        assert status == 200, done
        await until(lambda: view.get(path), lambda each: each["summary"]["state"] == "success")
        assert model.counts == {"1": 1, "2": 2, "3": 1}
