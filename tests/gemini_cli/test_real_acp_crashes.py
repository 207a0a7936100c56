"""The Gemini CLI's process gone in the middle of a prompt: told, cleaned up, started anew."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import fifo_signal, processes_matching, shell
from support.scripted_agent import child_pids
from support.stream_checks import check_stream

import corral
from corral import errors, result_from_events
from corral.events import Text
from corral.testing import Turn, hang, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli


async def events_until_killed(
    session: corral.Session, prompt: str, number: signal.Signals
) -> list[corral.Event]:
    """What a prompt gives whose process gets the signal once it has said something."""
    events: list[corral.Event] = []
    async for event in session.prompt(prompt):
        events.append(event)
        if isinstance(event, Text):
            for pid in child_pids():
                os.kill(pid, number)
    return check_stream(events)


@pytest.mark.parametrize(
    ("number", "kind", "end"),
    [
        (signal.SIGKILL, errors.KilledBySignal, (None, 9)),
        (signal.SIGTERM, errors.StreamBroken, (0, None)),
    ],
    ids=["killed", "end of its output"],  # told to end, the CLI does so with exit code 0
)
async def test_a_process_that_goes_fails_its_prompt_and_the_next_has_another(
    number: signal.Signals,
    kind: type[errors.CorralError],
    end: tuple[int | None, int | None],
    gemini: Gemini,
    tmp_path: Path,
) -> None:
    options = gemini.options([hang("half"), say("whole")])
    async with corral.session("gemini-acp", **options) as session:
        broken = result_from_events(await events_until_killed(session, "first question", number))
        assert child_pids() == []
        again = await session.run("second question")
    assert broken.text == "half"
    assert not broken.ok
    with pytest.raises(kind) as caught:
        broken.raise_for_status()
    assert "--acp" in " ".join(caught.value.argv)
    assert (caught.value.exit_code, caught.value.signal) == end
    assert again.text == "whole"
    assert "first question" not in gemini.requests[-1].texts
    assert processes_matching(str(tmp_path)) == []


@pytest.mark.timeout(200)
async def test_after_a_crash_the_conversation_goes_on_where_it_was(gemini: Gemini) -> None:
    script = [say("first answer"), hang("half"), say("third answer")]
    options = gemini.options(script, timeout=150)
    async with corral.session("gemini-acp", **options) as session:
        first = await session.run("first question")
        broken = result_from_events(
            await events_until_killed(session, "second question", signal.SIGKILL)
        )
        third = await session.run("third question")
    assert not broken.ok
    assert third.text == "third answer"
    assert third.session_id == first.session_id
    told = [text for message in gemini.requests[-1].history for text in message.texts]
    assert told[:2] == ["first question", "first answer"]
    assert told[-1] == "third question"


async def test_the_command_of_a_killed_cli_does_not_outlive_the_prompt(
    gemini: Gemini, tmp_path: Path
) -> None:
    sign = f"300.{uuid.uuid4().int}"
    with fifo_signal(tmp_path / "bell") as rung:
        command = f"sleep {sign} & echo up > {rung.path}; sleep {sign}"
        script = [Turn(calls=[shell(command)]), say("still here")]
        async with corral.session("gemini-acp", **gemini.options(script, policy="all")) as session:
            reading = asyncio.create_task(session.run("do it"))
            await asyncio.to_thread(rung.wait)
            assert processes_matching(sign)
            for pid in child_pids():
                os.kill(pid, signal.SIGKILL)
            broken = await reading
            assert processes_matching(sign) == []
            again = await session.run("and now?")
    assert broken.error is not None
    assert broken.error.code == "killed_by_signal"
    assert again.text == "still here"
