"""However a run ends, nothing of it is left running."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import (
    FifoSignal,
    exclusive_machine,
    fifo_signal,
    processes_matching,
    shell,
    steps,
)

import corral
from corral import errors, result_from_events
from corral.events import Done, Init, ToolResult, ToolUse
from corral.testing import Turn, hang

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli


@pytest.fixture
def sign() -> str:
    """How long every process sleeps that is not to be left behind: no other sleeps so long."""
    return f"300.{uuid.uuid4().int}"


def brood(sign: str, rung: FifoSignal) -> list[Turn]:
    """A shell that starts children in every way there is, rings, and waits."""
    lines = [
        f"sleep {sign} &",
        f"setsid sleep {sign} &",
        f"nohup sleep {sign} > /dev/null 2>&1 &",
        f"(setsid sleep {sign} < /dev/null > /dev/null 2>&1 &)",
        f"echo up > {rung.path}",
        f"sleep {sign}",
    ]
    return steps(shell("\n".join(lines)))


async def test_leaving_the_session_takes_every_process_of_the_shell_along(
    gemini: Gemini, tmp_path: Path, sign: str
) -> None:
    with fifo_signal(tmp_path / "bell") as rung:
        options = gemini.options(brood(sign, rung), policy="all")
        async with corral.session("gemini-cli", **options) as session:
            async for event in session.prompt("do it"):
                if isinstance(event, ToolUse):
                    break
            await asyncio.to_thread(rung.wait)
            assert processes_matching(sign)
            assert processes_matching(str(tmp_path))

        assert processes_matching(sign) == []
        assert processes_matching(str(tmp_path)) == []


async def test_a_cancelled_task_takes_every_process_along(
    gemini: Gemini, tmp_path: Path, sign: str
) -> None:
    with fifo_signal(tmp_path / "bell") as rung:
        task = asyncio.create_task(gemini.run(brood(sign, rung), policy="all"))
        await asyncio.to_thread(rung.wait)
        assert processes_matching(sign)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert processes_matching(sign) == []
        assert processes_matching(str(tmp_path)) == []


async def test_the_total_deadline_ends_the_shell_and_says_what_was_open(
    gemini: Gemini, tmp_path: Path, sign: str
) -> None:
    with exclusive_machine(tmp_path), fifo_signal(tmp_path / "bell") as rung:
        events = await gemini.events(brood(sign, rung), policy="all", timeout=12)
        await asyncio.to_thread(rung.wait, 0)  # it had come that far

    done = events[-1]
    assert isinstance(done, Done)
    assert done.status == "timeout"
    assert done.error is not None
    assert done.error.code == errors.TotalTimeout.code
    assert "12" in done.error.message
    assert [e.status for e in events if isinstance(e, ToolResult)] == ["cancelled"]
    assert processes_matching(sign) == []
    assert processes_matching(str(tmp_path)) == []


@pytest.mark.parametrize("turn", [hang(), hang("first words")], ids=["at once", "half-way"])
async def test_a_silent_model_runs_into_the_idle_deadline(
    gemini: Gemini, tmp_path: Path, turn: Turn
) -> None:
    with exclusive_machine(tmp_path):
        result = await gemini.run([turn], idle_timeout=2)

    with pytest.raises(errors.IdleTimeout, match="2s without any event"):
        result.raise_for_status()
    assert result.status == "timeout"
    assert len(gemini.requests) == 1
    assert processes_matching(str(tmp_path)) == []


async def test_a_program_that_gives_no_sign_of_life_runs_into_the_startup_deadline(
    gemini: Gemini, tmp_path: Path, sign: str
) -> None:
    program = tmp_path / "gemini"
    program.write_text(
        "#!/bin/bash\n"
        'if [ "$1" = --version ]; then echo 0.61.0; exit; fi\n'
        f"trap '' TERM\nexec sleep {sign}\n"
    )
    program.chmod(0o755)

    events = await gemini.events([], program=program, startup_timeout=1, grace=0.5)

    result = result_from_events(events)
    with pytest.raises(errors.StartupTimeout, match="1s"):
        result.raise_for_status()
    assert isinstance(events[0], Init)
    assert processes_matching(sign) == []
