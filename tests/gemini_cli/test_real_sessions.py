"""Conversations of more than one prompt, within a session and across sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import shell, steps

import corral
from corral import errors, result_from_events
from corral.events import Init, Text
from corral.testing import Turn, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli


async def test_a_conversation_remembers_within_a_session_and_after_it(gemini: Gemini) -> None:
    script = [*steps(shell("echo tool-words")), say("second answer"), say("third answer")]
    options = gemini.options(script, policy="all")
    lane = gemini.lane
    async with corral.session("gemini-cli", **options) as session:
        ours = session.id
        first = await session.run("first question")
        second = await session.run("second @question")

    options["resume"] = second.resume_token
    async with corral.session("gemini-cli", **options) as session:
        again = session.id
        events = [event async for event in session.prompt("third question")]
    third = result_from_events(events)

    assert [r.text for r in (first, second, third)] == ["done", "second answer", "third answer"]
    assert first.session_id
    assert {r.session_id for r in (first, second, third)} == {first.session_id}
    assert {r.resume_token for r in (first, second, third)} == {ours}
    assert again == ours
    assert len({r.run_id for r in (first, second, third)}) == 3
    assert isinstance(events[0], Init)
    assert events[0].resumed
    requests = lane.requests
    assert len(requests) == 4
    remembered = [(message.role, text) for message in requests[3].history for text in message.texts]
    assert remembered == [
        ("user", "first question"),
        ("model", "done"),
        ("user", "second @question"),
        ("model", "second answer"),
        ("user", "third question"),
    ]
    assert "tool-words" in str(requests[3].tool_results)


async def test_the_vendors_id_resumes_too_and_separate_sessions_share_nothing(
    gemini: Gemini,
) -> None:
    first = await gemini.run([say("one")], "first question")
    other = await gemini.run([say("other")], "other question")
    assert gemini.requests[0].last_text == "other question"
    assert "first question" not in gemini.requests[0].texts
    assert other.session_id != first.session_id

    second = await gemini.run([say("two")], "second question", resume=first.session_id)

    assert second.ok
    assert second.session_id == first.session_id
    assert "first question" in gemini.requests[0].texts
    assert "other question" not in gemini.requests[0].texts


async def test_a_run_that_is_not_kept_leaves_nothing_and_cannot_be_resumed(
    gemini: Gemini,
) -> None:
    from corral.system import paths

    result = await gemini.run([say("one")], keep=False)

    assert result.ok
    assert result.resume_token is None
    assert list(paths.sessions().iterdir()) == []
    assert list(paths.process_registry().iterdir()) == []


async def test_an_interrupted_headless_conversation_goes_on(gemini: Gemini) -> None:
    script = [Turn(text=("Once upon", " a time"), hang="after"), say("second"), say("third")]
    options = gemini.options(script, policy="reads")
    async with corral.session("gemini-cli", **options) as session:
        turn = session.prompt("first question")
        events: list[corral.Event] = []
        async for event in turn:
            events.append(event)
            if isinstance(event, Text):
                turn.cancel()
        first = result_from_events(events)
        second = await session.run("second question")
    options["resume"] = "last"
    third = await corral.run("gemini-cli", "third question", **options)

    assert (first.status, first.text) == ("interrupted", "Once upon")
    assert [r.text for r in (second, third)] == ["second", "third"]
    assert first.resume_token is not None
    assert {r.resume_token for r in (first, second, third)} == {first.resume_token}
    assert {r.session_id for r in (first, second, third)} == {first.session_id}
    for request in gemini.requests[1:]:
        assert "first question" in request.texts
    assert "second" in gemini.requests[2].texts


async def test_a_cancelled_first_turn_over_acp_goes_on_in_its_session_or_is_lost(
    gemini: Gemini,
) -> None:
    options = gemini.options([Turn(hang=True, repeat=2), say("second")], policy="reads")

    async def cancelled(session: corral.Session) -> corral.Result:
        before = len(gemini.requests)
        turn = session.prompt("first question")
        reading = asyncio.create_task(turn.collect())
        while len(gemini.requests) == before:
            await asyncio.sleep(0.01)
        turn.cancel()
        return await reading

    async with corral.session("gemini-acp", **options) as session:
        first = await cancelled(session)
    assert (first.status, first.resume_token) == ("interrupted", None)
    options["resume"] = "last"
    with pytest.raises(errors.ResumeLost, match="its first turn was interrupted"):
        await corral.run("gemini-acp", "second question", **options)

    del options["resume"]
    async with corral.session("gemini-acp", **options) as session:
        await cancelled(session)
        second = await session.run("second question")
    assert (second.status, second.text) == ("success", "second")
    assert second.resume_token is not None
