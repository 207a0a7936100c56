"""Running sessions in a real ``corral view`` process: what waits there is answered over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Unpack

import aiohttp
import pytest
from support.builtin_agent import MODELS, model_env
from support.live_runs import pending_request, running
from support.scripted_acp import agent
from support.view_server import WAIT, ViewServer, running_view
from support.webhook import webhook

import corral
from corral import live
from corral._sessions import sinks
from corral._system.clock import time_of_day
from corral.events import PermissionDecision
from corral.run_kwargs import RunKwargs
from corral.testing import Call, ModelServer, Turn, fail, say
from corral.values import Json

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
        for control, body in (("budget", {"cost": 1.0}), ("steer", {"text": "faster"})):
            status, refused = await view.post(f"{path}/{control}", body)
            assert (status, refused["error"]["code"]) == (409, "refused")
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


@pytest.mark.deep
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


@pytest.mark.deep
async def test_an_agent_is_steered_and_its_budget_is_raised(
    tmp_path: Path, workspace: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "PUBLISH_AFTER", 0.0)
    wait = f"until [ -e {workspace}/go ]; do sleep 0.02; done"
    usage = {"input": 1_000, "output": 24}
    script = [Turn(calls=[Call("shell", {"command": wait})], usage=usage), say("done")]
    lane = model_server.lane("view-live-steer", script)
    budget = corral.Budget(max_cost=5.0, max_calls=1, on_budget="pause")
    options: RunKwargs = {"cwd": workspace, "policy": "all", "env": model_env(lane), "timeout": 60}
    options["model"] = MODELS["gemini"]
    with running_view(tmp_path / "corral-home") as view:
        work = corral.run(None, "go", budget=budget, **options)
        task = asyncio.create_task(work)
        about = await running()
        path = f"/api/sessions/{about.id}"

        async def calls(wanted: int) -> Any:
            async with asyncio.timeout(WAIT):
                while (found := await view.get(path))["budgets"][0].get("calls") != wanted:
                    await asyncio.sleep(0.1)
            return found

        detail = await calls(1)
        assert detail["facts"]["can_steer"]
        assert (detail["context"], detail["context_window"]) == (1_024, 1_048_576)
        (known,) = detail["budgets"]
        assert (known["max_cost"], known["max_calls"], known["tokens"]) == (5.0, 1, 1_024)
        assert detail["summary"]["cost_usd"] == known["cost"] > 0
        assert (await view.post(f"{path}/steer", {"text": " "}))[0] == 409
        assert (await view.post(f"{path}/steer", {"text": "Use tabs"}))[0] == 200
        (workspace / "go").touch()
        detail = await state_of(view, about.id, "paused")
        assert detail["summary"]["state_text"] == "paused: the budget is used up"
        (listed,) = (await view.get("/api/runs", state="paused"))["runs"]
        assert (listed["id"], listed["live"]) == (about.id, True)
        for wrong in ({}, {"calls": -1}, {"tokens": 5}, {"cost": 1e300}):
            assert (await view.post(f"{path}/budget", wrong))[0] == 409, wrong
        assert (await view.post(f"{path}/budget", {"calls": 2}))[0] == 200
        assert (await task).text == "done"
        detail = await state_of(view, about.id, "success")
    assert "Use tabs" in "\n".join(lane.requests[1].texts)
    (known,) = detail["budgets"]
    assert (known["max_calls"], known["calls"]) == (3, 2)
    assert not detail["facts"]["can_steer"]


async def test_a_person_who_is_the_agent_answers_over_http(tmp_path: Path, workspace: Path) -> None:
    with running_view(tmp_path / "corral-home") as view:
        work = corral.run("manual", "Is it green?", via="file", cwd=workspace, timeout=60)
        task = asyncio.create_task(work)
        about = await running()
        detail = await state_of(view, about.id, "waiting_person")
        (pending,) = detail["pending"]
        assert (pending["kind"], pending["title"]) == ("question", "Is it green?")
        path = f"/api/sessions/{about.id}/answer"
        assert (await view.post(path, {"text": " "}))[0] == 400
        assert (await view.post(path, {"text": "Yes, it is."}))[0] == 200
        assert (await task).text == "Yes, it is."
        assert (await view.post(path, {"text": "again"}))[0] == 409


async def test_a_question_of_an_agent_is_answered_over_http(
    tmp_path: Path, workspace: Path, model_server: ModelServer
) -> None:
    options: Json = [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
    ask = Call("ask_user", {"question": "Which database?", "options": options})
    lane = model_server.lane("view-live-question", [Turn(calls=[ask]), say("done")])
    run_options: RunKwargs = {
        "cwd": workspace,
        "env": model_env(lane),
        "model": MODELS["gemini"],
        "remote_answers": True,
    }
    with running_view(tmp_path / "corral-home") as view:
        work = corral.run(None, "go", **run_options)
        task = asyncio.create_task(work)
        about = await running()
        detail = await state_of(view, about.id, "waiting_person")
        (pending,) = detail["pending"]
        assert (pending["kind"], pending["title"]) == ("question", "Which database?")
        assert pending["text"] == "Which database?\n1. SQLite: one file\n2. Postgres"
        assert (pending["choices"], pending["free_text"]) == (["SQLite", "Postgres"], True)
        path = f"/api/sessions/{about.id}/answer"
        gate = {"gate": pending["request_id"]}
        assert (await view.post(path, {"text": " ", **gate}))[0] == 409
        assert (await view.post(path, {"text": "Postgres", **gate}))[0] == 200
        result = await task
        assert result.text == "done"
        assert [each.answer for each in result.questions] == ["Postgres"]
        assert (await view.post(path, {"text": "again", **gate}))[0] == 409
        listed = await view.get(f"/api/sessions/{about.id}/items")
    shown = str(listed)
    assert "The agent asks: Which database?" in shown
    assert 'Answered: "Postgres"' in shown or "Answered: Postgres" in shown


async def test_a_run_that_waits_for_a_rate_limit_says_until_when(
    tmp_path: Path, workspace: Path, model_server: ModelServer
) -> None:
    script = [fail(429, "slow down", retry_after=3600)]
    env = model_env(model_server.lane("view-live-limit", script))
    env["GEMINI_API_KEY"] = "another-key-for-the-view"
    options: RunKwargs = {"cwd": workspace, "env": env, "model": MODELS["gemini"]}
    options["on_limit"] = "wait"
    with running_view(tmp_path / "corral-home") as view:
        task = asyncio.create_task(corral.run(None, "go", **options))
        about = await running()
        detail = await state_of(view, about.id, "rate_limited")
        known = next(run for run in live.runs() if run.id == about.id)
        assert known.until is not None
        text = f"rate limited until {time_of_day(known.until)}"
        assert detail["summary"]["state_text"] == text
        (listed,) = (await view.get("/api/runs", state="rate_limited"))["runs"]
        assert (listed["state_text"], listed["live"]) == (text, True)
        assert (await view.post(f"/api/sessions/{about.id}/cancel", {}))[0] == 200
        assert (await task).status == "interrupted"
