"""A turn of a workflow whose steps run in its process is recorded when they have started: what a
kill, a message or a mismatch at that moment does.

The commands run in the process because the agents are simulated (``simulate``)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.durable_processes import DurableProcesses, wait_until

from corral._engine import query, service
from corral._engine.query import TURN

HEAD = """
import asyncio
from pathlib import Path
import corral
from corral.workflows import Flow


@corral.workflow
async def steps(flow: Flow, log: str) -> str:
    def step(name: str, more: str = "true"):
        return flow.command(f"echo begin {name} >> {log}; {more}", name=name, check=True)

"""
BEFORE = f"before step {TURN}"
"""The steps of a turn have started, and it is not recorded."""


@pytest.fixture
def start(file_processes: DurableProcesses) -> Callable[..., int]:
    def start(body: str, **order: Any) -> int:
        file = file_processes.folder / "steps.py"
        file.write_text(HEAD + body)
        args = {"log": str(file_processes.log)}
        return file_processes.workflow(file, args, simulate=True, **order)

    return start


def started_steps(processes: DurableProcesses) -> Counter[str]:
    return Counter(line.split()[1] for line in processes.lines())


TWO = """    await step("one")
    await step("two")
    return "done"
"""


@pytest.mark.parametrize("moment", [BEFORE, f"after step {TURN}", "ended one#1", "ended two#1"])
def test_a_kill_repeats_only_what_is_not_recorded(
    file_processes: DurableProcesses, start: Callable[..., int], moment: str
) -> None:
    assert file_processes.wait(start(TWO, kill_at=moment)) == -signal.SIGKILL
    recorded = asyncio.run(query.show("r", db=file_processes.db)).state.completed
    before = started_steps(file_processes)
    assert len(recorded) < 2
    assert file_processes.wait(start(TWO)) == 0, file_processes.output()
    assert file_processes.wait_for_run().completed == ["one", "two"]
    expected = {name: 1 + (name in before and name not in recorded) for name in ("one", "two")}
    assert started_steps(file_processes) == expected


CRASHES = """    done = await flow.run("gemini-cli", "Fix it", name="fix", on_crash="%s")
    await step("two")
    return done.text
"""


@pytest.mark.parametrize("rule", ["rerun", "resume", "fail"])
def test_on_crash_holds_for_a_step_whose_turn_was_not_recorded(
    file_processes: DurableProcesses, start: Callable[..., int], rule: str
) -> None:
    body = CRASHES % rule
    assert file_processes.wait(start(body, kill_at=BEFORE)) == -signal.SIGKILL
    assert not asyncio.run(query.show("r", db=file_processes.db)).state.visits
    assert file_processes.wait(start(body)) == 0, file_processes.output()
    ended = file_processes.wait_for_run()
    assert ended.status == ("fail" if rule == "fail" else "success"), ended.reason
    if rule == "fail":
        assert "a crash interrupted it" in ended.reason
        assert not started_steps(file_processes)


MANY = """    async def work(n: int) -> None:
        await flow.run("gemini-cli", "Do nothing", name=f"work_{n}")
        if n == 20:
            await step("twenty")

    await flow.parallel([work(n) for n in range(400)], max_parallel=16)
    return ""
"""


def test_a_cancellation_is_received_before_the_steps_that_end_meanwhile(
    file_processes: DurableProcesses, start: Callable[..., int]
) -> None:
    """Each turn of the program is recorded with steps that have ended: there is always one more."""
    running = start(MANY)
    wait_until(lambda: started_steps(file_processes)["twenty"], "the step after the 20th")
    asyncio.run(service.cancel("r", reason="enough", db=file_processes.db))
    assert file_processes.wait(running) == 0, file_processes.output()
    closed = file_processes.wait_for_run()
    assert (closed.status, closed.reason) == ("cancelled", "enough")
    assert len(closed.completed) < 200


ASKS = """    async def asks() -> str:
        return await flow.ask("Go on?", ["yes", "no"])

    async def works() -> None:
        for n in range(20):
            await flow.run("gemini-cli", "Do nothing", name=f"work_{n}")
        await flow.sleep(0.01)
        await step("last")

    reply, _ = await asyncio.gather(asks(), works())
    return reply
"""


@pytest.mark.parametrize("moment", range(2, 60, 14))
def test_an_answer_and_a_timer_come_while_turns_are_recorded(
    file_processes: DurableProcesses, start: Callable[..., int], moment: int
) -> None:
    code = file_processes.wait(start(ASKS, kill_at=moment))
    assert code == -signal.SIGKILL, file_processes.output()
    assert file_processes.wait(start(ASKS)) == 0, file_processes.output()
    ended = file_processes.wait_for_run()
    assert (ended.status, ended.context["result"]) == ("success", "yes")
    assert len(ended.completed) == len(set(ended.completed)) == 23
