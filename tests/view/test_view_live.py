"""Running sessions in a real ``corral view`` process: what waits there is answered over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Unpack

import aiohttp
import pytest
from support.live_runs import pending_request, running
from support.scripted_acp import agent
from support.view_server import WAIT, ViewServer, running_view
from support.webhook import webhook

import corral
from corral.events import PermissionDecision
from corral.run_kwargs import RunKwargs

pytestmark = pytest.mark.whole_program
ASK = "ask execute make it"


async def run(workspace: Path, orders: str, **options: Unpack[RunKwargs]) -> list[corral.Event]:
    given: RunKwargs = {"cwd": workspace, "timeout": 60, "grace": 1, **options}
    async with corral.session(agent(), **given) as session:
        return [event async for event in session.prompt(orders)]


async def state_of(view: ViewServer, id: str, wanted: str) -> Any:
    """The details of a session, once it is in this state."""
    async with asyncio.timeout(WAIT):
        while True:
            detail = await view.get(f"/api/sessions/{id}")
            if detail["summary"]["state"] == wanted:
                return detail
            await asyncio.sleep(0.1)


async def test_a_permission_is_answered_once_and_a_session_is_cancelled(
    tmp_path: Path, workspace: Path
) -> None:
    with running_view(tmp_path / "corral-home") as view:
        task = asyncio.create_task(
            run(workspace, f"{ASK}\nuntil {workspace}/go", remote_answers=True)
        )
        request = await pending_request()
        detail = await state_of(view, request.run, "waiting_permission")
        (pending,) = detail["pending"]
        assert (pending["title"], pending["request_id"]) == ("make it", request.request_id)
        assert detail["facts"]["pid"]
        (listed,) = (await view.get("/api/runs", state="waiting"))["runs"]
        assert (listed["live"], listed["pending"]) == (True, 1)
        path = f"/api/sessions/{request.run}"
        status, refused = await view.post(f"{path}/permissions/other", {"decision": "deny"})
        assert (status, refused["error"]["code"]) == (409, "unknown_request")
        status, wrong = await view.post(
            f"{path}/permissions/{request.request_id}", {"decision": "perhaps"}
        )
        assert (status, wrong["error"]["code"]) == (400, "config")
        answers = [
            await view.post(f"{path}/permissions/{request.request_id}", {"decision": "allow_once"})
            for _ in range(2)
        ]
        assert [status for status, _ in answers] == [200, 409]
        status, refused = await view.post(f"{path}/budget", {"add": 1.0})
        assert status == 409
        (workspace / "go").touch()
        events = await task
        made = next(event for event in events if isinstance(event, PermissionDecision))
        assert (made.decision, made.rule) == (
            "allow_once",
            "answered with the page of corral view",
        )
        await state_of(view, request.run, "success")

        task = asyncio.create_task(run(workspace, f"until {workspace}/never"))
        about = await running()
        await state_of(view, about.id, "running")
        assert (await view.post(f"/api/sessions/{about.id}/cancel", {}))[0] == 200
        await asyncio.gather(task, return_exceptions=True)
        await state_of(view, about.id, "interrupted")
        status, late = await view.post(f"/api/sessions/{about.id}/cancel", {})
        assert (status, late["error"]["code"]) == (409, "not_live")


async def test_a_run_without_a_transcript_is_listed_while_it_runs(
    tmp_path: Path, workspace: Path
) -> None:
    with running_view(tmp_path / "corral-home") as view:
        task = asyncio.create_task(run(workspace, f"until {workspace}/go", record=False))
        about = await running()
        (listed,) = (await view.get("/api/runs", state="live"))["runs"]
        assert (listed["id"], listed["state"]) == (about.id, "running")
        (workspace / "go").touch()
        await task


async def test_a_one_time_token_answers_without_the_cookie(tmp_path: Path, workspace: Path) -> None:
    with webhook() as hook, running_view(tmp_path / "corral-home") as view:
        task = asyncio.create_task(run(workspace, ASK, notify=hook.url))
        token = (await asyncio.to_thread(hook.next)).message["answer"]["token"]
        path = f"{view.base}/api/answers/{token}"
        async with aiohttp.ClientSession() as client:
            for body, expected in (
                ({}, (400, "config")),
                ({"decision": "deny"}, (200, None)),
                ({"decision": "allow_once"}, (409, "token")),
            ):
                async with client.post(path, json=body) as response:
                    found = (await response.json()).get("error", {}).get("code")
                    assert (response.status, found) == expected
            async with client.post(f"{path}x", json={"decision": "deny"}) as response:
                assert response.status == 409
        made = next(each for each in await task if isinstance(each, PermissionDecision))
        assert (made.decision, made.rule) == ("deny", "answered with a link")
