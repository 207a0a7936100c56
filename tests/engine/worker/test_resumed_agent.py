"""A real agent that is killed during its turn, with its worker, continues in its session."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.durable_processes import DurableProcesses, wait_until

from corral._engine.node_runner import GO_ON
from corral.testing import Call, Request, Turn, hang, say

if TYPE_CHECKING:
    from support.real_agents import RealAgent

pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(240)]


@pytest.mark.deep
def test_an_agent_killed_in_its_turn_continues_in_its_session(
    file_processes: DurableProcesses, gemini: RealAgent
) -> None:
    processes = file_processes
    (processes.workspace / "facts.txt").write_text("the sky is green")
    is_in_turn = threading.Event()

    def answer(request: Request) -> Turn:
        if any(GO_ON.split(".")[0] in text for text in request.texts):
            return say("it is green")
        if not request.tool_results:
            return Turn(calls=[Call("read_file", {"file_path": "facts.txt"})])
        is_in_turn.set()
        return hang()

    options = gemini.options(answer)
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        ' a [prompt="Which colour?", agent="gemini-acp", on_crash=resume, detached=false] }'
    )
    agent_options = {
        "env": options.get("env", {}),
        "program": gemini.program,
        "model": "gemini-2.5-flash",
    }
    first = processes.run(graph, options=agent_options)
    wait_until(is_in_turn.is_set, f"the second request of the agent: {processes.output()}")
    processes.kill(first)
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    closed = processes.wait_for_run()
    assert closed.outcomes["a"].status == "success", closed.outcomes["a"]
    last = gemini.requests[-1]
    assert any("Which colour?" in text for text in last.texts[:-1]), last.texts
    assert any("the sky is green" in str(each) for each in last.tool_results), (
        "it did not continue its session"
    )
