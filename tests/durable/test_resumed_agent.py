"""A real agent is killed in the middle of its turn, with its worker, and goes on in its session."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.durable_processes import DurableProcesses, wait_until

from corral.durable.worker.node_workflow import GO_ON
from corral.testing import Call, Request, Turn, hang, say

if TYPE_CHECKING:
    from support.real_agents import RealAgent

pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(240)]


def test_an_agent_that_is_killed_in_mid_turn_goes_on_in_its_session(
    file_world: DurableProcesses, gemini: RealAgent
) -> None:
    world = file_world
    (world.workspace / "facts.txt").write_text("the sky is green")
    half = threading.Event()

    def answer(request: Request) -> Turn:
        if any(GO_ON.split(".")[0] in text for text in request.texts):
            return say("it is green")
        if not request.tool_results:
            return Turn(calls=[Call("read_file", {"file_path": "facts.txt"})])
        half.set()
        return hang()

    options = gemini.options(answer)
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit;"
        ' a [prompt="Which colour?", agent="gemini-acp", on_crash=resume, detached=false] }'
    )
    given = {"env": options.get("env", {}), "program": gemini.program, "model": "gemini-2.5-flash"}
    first = world.run(graph, options=given)
    wait_until(half.is_set, f"the agent to be in the middle of its turn: {world.output()}")
    world.kill(first)
    assert world.wait(world.run(graph)) == 0, world.output()
    closed = world.wait_for_run()
    assert closed.outcomes["a"].status == "success", closed.outcomes["a"]
    last = gemini.requests[-1]
    assert any("Which colour?" in text for text in last.texts[:-1]), last.texts
    assert any("the sky is green" in str(each) for each in last.tool_results), "it read it before"
