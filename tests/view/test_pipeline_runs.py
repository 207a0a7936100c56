"""Runs of pipelines in memory: a real ``corral view`` shows them from their run folders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.view_server import WAIT, ViewServer, running_view

from corral import _publishing, pipelines
from corral._runs import stored_run
from corral._system import paths
from corral._view import page_file

pytestmark = pytest.mark.whole_program

PIPELINE = """digraph build {{
    goal = "Build it"
    start [shape=Mdiamond]
    count [shape=parallelogram, tool_command="{command}"]
    done  [shape=Msquare]
    start -> count -> done
}}"""


async def state_of(view: ViewServer, path: str, wanted: str) -> Any:
    async with asyncio.timeout(WAIT):
        while (found := await view.get(path))["summary"]["state"] != wanted:
            await asyncio.sleep(0.1)
    return found


def states_of(detail: Any) -> list[str]:
    return [node["state"] for node in detail["graph"]["nodes"]]


async def test_a_run_in_memory_has_its_page_while_it_runs_and_after(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_publishing, "PUBLISH_AFTER", 0.0)
    command = f"until [ -e {workspace}/go ]; do sleep 0.02; done"
    text = PIPELINE.format(command=command)

    async def run() -> pipelines.PipelineResult:
        return await pipelines.run(text, durable=False, cwd=workspace)

    async def live_run() -> str:
        """The id of the run that is visible."""
        async with asyncio.timeout(WAIT):
            while not (found := (await view.get("/api/runs", state="live"))["runs"]):
                await asyncio.sleep(0.1)
        return str(found[0]["id"])

    with running_view(tmp_path / "corral-home") as view:
        task = asyncio.create_task(run())
        first = await live_run()
        path = f"/api/pipelines/{first}"
        detail = await state_of(view, path, "running")
        assert not detail["durable"]
        async with asyncio.timeout(WAIT):
            # The run folder is written a moment later.
            while states_of(detail) != ["success", "running", "idle"]:
                await asyncio.sleep(0.05)
                detail = await view.get(path)
        assert (await view.post(f"{path}/retry", {"node": "count"}))[0] == 400
        assert (await view.post(f"{path}/answer", {"text": "yes"}))[0] == 400
        (workspace / "go").touch()
        assert (await task).ok
        detail = await state_of(view, path, "success")
        assert [visit["node"] for visit in detail["path"]] == ["start", "count", "done"]
        assert [edge["taken"] for edge in detail["graph"]["edges"]] == [1, 1]
        assert (await view.get(f"{path}/events"))["events"]
        async with asyncio.timeout(WAIT):
            while not (found := (await view.get("/api/runs", state="success"))["runs"]):
                await asyncio.sleep(0.1)
        (listed,) = found
        assert (listed["id"], listed["title"], listed["live"]) == (first, "Build it", False)

        (workspace / "go").unlink()
        task = asyncio.create_task(run())
        path = f"/api/pipelines/{await live_run()}"
        async with asyncio.timeout(WAIT):
            while (await view.post(f"{path}/cancel", {}))[0] != 200:
                await asyncio.sleep(0.1)  # its process has not reported yet
        assert (await task).status == "cancelled"
        await state_of(view, path, "cancelled")

    written: list[bytes] = []
    await asyncio.to_thread(lambda: page_file.write(stored_run.find(first), written.append))
    page = b"".join(written)
    assert f'"start":"#/pipelines/{first}"'.encode() in page
    assert page.count(b"data-node=") == 3


async def test_damaged_run_folders_are_not_shown_and_hide_no_other(
    tmp_path: Path, workspace: Path
) -> None:
    good = PIPELINE.format(command="true")
    run = await pipelines.run(good, durable=False, cwd=workspace)
    folder = paths.home() / "runs"
    for name, content in (("empty", None), ("broken", b"{"), ("other", b"[1]")):
        (folder / name).mkdir()
        if content is not None:
            (folder / name / "graph.json").write_bytes(content)
    with (folder / run.run / "events.ndjson").open("ab") as log:
        log.write(b'not json\n{"type": "step_sta')
    with running_view(tmp_path / "corral-home") as view:
        found = (await view.get("/api/runs", kind="pipeline"))["runs"]
        assert [(each["id"], each["state"]) for each in found] == [(run.run, "success")]
