"""A durable node that waits for a rate limit: nothing runs, and it survives SIGKILL."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.durable_processes import DurableProcesses, wait_until

from corral._engine.worker.node_workflow import LONGEST_HOLD
from corral._sessions.limit_waits import CONTINUE
from corral.testing import Call, Request, Turn, fail, say

if TYPE_CHECKING:
    from support.real_agents import RealAgent

pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(240)]


def test_a_killed_run_that_waits_for_a_limit_goes_on_in_its_session(
    file_processes: DurableProcesses, gemini: RealAgent
) -> None:
    processes = file_processes
    (processes.workspace / "facts.txt").write_text("the sky is green")
    is_limited = threading.Event()

    def answer(request: Request) -> Turn:
        if not request.tool_results:
            return Turn(calls=[Call("read_file", {"file_path": "facts.txt"})])
        if is_limited.is_set():
            return say("it is green")
        is_limited.set()
        return fail(429, "slow down", retry_after=LONGEST_HOLD + 3)

    options = gemini.options(answer)
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        ' a [prompt="Which colour?", agent="gemini-acp", on_limit=wait, detached=false] }'
    )
    agent_options = {
        "env": options.get("env", {}),
        "program": gemini.program,
        "model": "gemini-2.5-flash",
        "retries": 0,
    }
    first = processes.run(graph, options=agent_options)
    wait_until(is_limited.is_set, f"the limit: {processes.output()}")
    wait_until(lambda: "step_retrying" in _events(processes), f"the wait: {processes.output()}")
    processes.kill(first)
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    closed = processes.wait_for_run()
    outcome = closed.outcomes["a"]
    assert (outcome.status, outcome.attempts) == ("success", 1), outcome
    last = gemini.requests[-1]
    assert CONTINUE in last.texts[-1], "the prompt was repeated from its beginning"
    assert any("Which colour?" in text for text in last.texts[:-1]), last.texts
    assert any("the sky is green" in str(each) for each in last.tool_results)


def _events(processes: DurableProcesses) -> str:
    file = processes.folder / "r" / "events.ndjson"
    return file.read_text() if file.exists() else ""
