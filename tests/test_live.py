"""A permission request that waits in one place is answered from another."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Unpack

import pytest
from support.live_runs import pending_request, running, wait_for
from support.scripted_acp import agent

import corral
from corral import live
from corral._publishing import control, link
from corral._publishing.records import folder
from corral._sessions import sinks
from corral._sessions.permissions import Asker
from corral.events import Decision, PermissionDecision, PermissionRequest
from corral.run_kwargs import RunKwargs

ASK = "ask execute make it"


async def run(
    workspace: Path,
    orders: str = ASK,
    ask: Asker | None = None,
    **options: Unpack[RunKwargs],
) -> list[corral.Event]:
    given: RunKwargs = {"cwd": workspace, "timeout": 60, "grace": 1, **options}
    async with corral.session(agent(), ask=ask, **given) as session:
        return [event async for event in session.prompt(orders)]


def decision_of(events: list[corral.Event]) -> PermissionDecision:
    return next(event for event in events if isinstance(event, PermissionDecision))


def code_of(found: pytest.ExceptionInfo[live.LiveError]) -> str:
    return found.value.problem.code


@pytest.mark.parametrize("decision", ["allow_once", "deny"])
async def test_another_process_answers_and_the_agent_goes_on(
    workspace: Path, decision: Decision
) -> None:
    task = asyncio.create_task(run(workspace, remote_answers=True, label="nightly"))
    request = await pending_request()
    assert (request.title, request.tool_kind) == ("make it", "execute")
    assert request.deadline is not None
    about = await running()
    assert (about.kind, about.state, about.label) == ("session", "waiting_permission", "nightly")
    await asyncio.to_thread(control.answer, request.run, decision, request_id=request.request_id)
    events = await task
    made = decision_of(events)
    assert (made.decision, made.by, made.rule) == (
        decision,
        "person",
        "answered with corral.runs.answer",
    )
    assert [*folder().glob("*.json"), *folder().glob("*.sock")] == []


async def test_of_many_answers_at_once_one_counts_and_the_others_get_an_error(
    workspace: Path,
) -> None:
    task = asyncio.create_task(run(workspace, f"{ASK}\nuntil {workspace}/go", remote_answers=True))
    request = await pending_request()

    def answer(number: int) -> str:
        try:
            control.answer(
                request.run, "allow_once", request_id=request.request_id, by=f"n{number}"
            )
        except live.LiveError as error:
            return f"{error.problem.code}: {error.message}"
        return f"n{number}"

    with ThreadPoolExecutor(8) as threads:
        answers = await asyncio.to_thread(lambda: list(threads.map(answer, range(8))))
    winners = [each for each in answers if each.startswith("n")]
    assert len(winners) == 1
    late = f"answered: the request was already answered: {winners[0]}"
    assert sorted(answers) == sorted([*winners, *[late] * 7])
    (workspace / "go").touch()
    assert decision_of(await task).rule == f"answered with {winners[0]}"


async def test_the_callers_own_question_ends_when_the_answer_comes_from_elsewhere(
    workspace: Path,
) -> None:
    answers: list[str] = []

    async def ask(_request: PermissionRequest) -> Decision:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as end:
            answers.append(end.args[0])
            raise
        return "deny"

    task = asyncio.create_task(run(workspace, ask=ask))
    request = await pending_request()
    await asyncio.to_thread(control.answer, "last", "allow_once", by="the page")
    assert request.request_id
    assert decision_of(await task).decision == "allow_once"
    assert answers == ["answered: the page"]


async def test_an_answer_that_comes_after_the_callers_own_is_an_error(workspace: Path) -> None:
    answered = asyncio.Event()

    async def ask(_request: PermissionRequest) -> Decision:
        await answered.wait()
        return "deny"

    task = asyncio.create_task(run(workspace, f"{ASK}\nuntil {workspace}/go", ask=ask))
    request = await pending_request()
    answered.set()
    await asyncio.to_thread(wait_for, lambda: not live.pending())
    with pytest.raises(live.LiveError, match="already answered: where the run was started"):
        await asyncio.to_thread(
            control.answer, request.run, "allow_once", request_id=request.request_id
        )
    (workspace / "go").touch()
    made = decision_of(await task)
    assert (made.decision, made.rule) == ("deny", "asked")


async def test_a_quick_answer_of_the_caller_shows_the_run_to_no_one(workspace: Path) -> None:
    async def ask(_request: PermissionRequest) -> Decision:
        return "allow_once"

    assert decision_of(await run(workspace, ask=ask)).decision == "allow_once"
    assert not folder().exists()


async def test_without_anyone_to_ask_a_request_is_denied_at_once(workspace: Path) -> None:
    made = decision_of(await run(workspace))
    assert (made.decision, made.by) == ("deny", "policy")
    assert not folder().exists()


async def test_a_request_that_no_one_answers_is_denied_after_its_time(workspace: Path) -> None:
    made = decision_of(await run(workspace, remote_answers=True, answer_timeout=0.3))
    assert (made.decision, made.by) == ("deny", "timeout")


async def test_wrong_ids_and_late_answers_are_errors(workspace: Path) -> None:
    task = asyncio.create_task(run(workspace, remote_answers=True))
    request = await pending_request()
    with pytest.raises(live.LiveError, match="no request '99' is open") as unknown:
        await asyncio.to_thread(control.answer, request.run, "deny", request_id="99")
    assert code_of(unknown) == "unknown_request"
    with pytest.raises(live.LiveError, match="this is another one") as other:
        await asyncio.to_thread(control.answer, request.run, "deny", key="of another request")
    assert code_of(other) == "answered"
    with pytest.raises(live.LiveError, match="no-such-run is not running"):
        await asyncio.to_thread(control.answer, "no-such-run", "deny")
    await asyncio.to_thread(control.answer, request.run, "deny")
    await task
    with pytest.raises(live.LiveError, match="is not running") as late:
        await asyncio.to_thread(control.answer, request.run, "deny")
    assert code_of(late) == "not_live"


async def test_a_folder_that_cannot_be_written_only_hides_the_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "PUBLISH_AFTER", 0.0)
    folder().parent.mkdir()
    folder().write_text("a file is where the folder should be")
    made = decision_of(await run(workspace, remote_answers=True))
    assert made.decision == "deny"
    assert made.rule is not None
    assert "no one can answer" in made.rule


async def test_a_run_without_a_free_descriptor_is_only_not_visible(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []
    reports: list[dict[str, object]] = []

    def refuse() -> None:
        tries.append(True)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(sinks, "PUBLISH_AFTER", 0.0)
    monkeypatch.setattr(link, "current", refuse)
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    result = corral.result_from_events(await run(workspace, "text hello\nsleep 0.1"))
    assert (result.status, tries, reports) == ("success", [True], [])


async def test_a_running_session_is_seen_cancelled_and_not_steered(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "PUBLISH_AFTER", 0.0)
    task = asyncio.create_task(run(workspace, "text working\nhang"))
    about = await running()
    assert (about.state, about.title, about.cwd) == ("running", "text working hang", str(workspace))
    with pytest.raises(live.LiveError, match="cannot be steered while it works") as refused:
        await asyncio.to_thread(control.steer, about.id, "faster")
    assert code_of(refused) == "refused"
    with pytest.raises(live.LiveError, match="no budget"):
        await asyncio.to_thread(control.add_budget, about.id, 1.0)
    await asyncio.to_thread(control.cancel, about.id)
    result = corral.result_from_events(await task)
    assert result.status == "interrupted"
    assert live.processes() == []


async def test_an_open_session_is_idle_between_its_turns(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "PUBLISH_AFTER", 0.0)
    async with corral.session(agent(), cwd=workspace) as session:
        await session.run("sleep 0.1")
        assert [each.state for each in live.runs()] == ["idle"]
    assert live.runs() == []


async def test_the_prompts_of_a_pool_are_runs_of_their_own(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "PUBLISH_AFTER", 0.0)
    async with corral.pool(agent(), cwd=workspace, remote_answers=True) as pool:
        tasks = [asyncio.create_task(pool.run(ASK)) for _ in range(2)]
        both = await asyncio.to_thread(
            wait_for, lambda: found if len(found := live.pending()) == 2 else None
        )
        for each in both:
            await asyncio.to_thread(control.answer, each.run, "allow_once")
        assert [(await task).text for task in tasks] == ["[b-once]"] * 2
        assert len({each.run for each in both}) == 2
        assert live.runs() == []


async def test_what_others_see_of_a_request_has_no_secrets(workspace: Path) -> None:
    secret = "hunter2-is-a-secret"
    env = {"MY_TOKEN": secret}
    orders = f"ask execute curl -H {secret}"
    task = asyncio.create_task(run(workspace, orders, remote_answers=True, env=env))
    request = await pending_request()
    written = next(folder().glob("*.json"))
    assert request.title == "curl -H [MY_TOKEN redacted]"
    assert secret not in f"{written.read_text()} {request}"
    assert (written.stat().st_mode & 0o777, folder().stat().st_mode & 0o777) == (0o600, 0o700)
    await asyncio.to_thread(control.answer, request.run, "deny")
    await task


@pytest.mark.deep
async def test_a_session_that_is_dropped_without_being_closed_is_not_listed_any_more(
    workspace: Path,
) -> None:
    async def start_and_drop() -> None:
        session = corral.session(agent(), cwd=workspace, timeout=60, grace=1)
        await session.__aenter__()
        reading = asyncio.ensure_future(session.prompt("hang").collect())
        await running()
        reading.cancel()
        await asyncio.wait([reading])

    await start_and_drop()
    gc.collect()
    await asyncio.to_thread(wait_for, lambda: not live.runs())
