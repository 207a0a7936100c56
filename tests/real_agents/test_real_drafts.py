"""``corral workflow draft`` with real agents: the draft is corrected and written, and then run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.pipeline_command import corral
from support.real_agents import RealAgent, for_agents
from support.sandbox import needs_sandbox

from corral._workflows.drafted import Bounds, find_bounds
from corral.testing import Request, Turn, call, say

WRONG = """\
import os

os.system("touch ran")
"""
RIGHT = '''\
import corral
from corral.workflows import Flow


@corral.workflow
async def note(flow: Flow, name: str = "Ada") -> str:
    """Write a note, and check it."""
    made = await flow.run("AGENT", f"Write a note for {name}", policy="edits", name="write")
    check = await flow.command("grep -c Ada note.txt; test -e /etc/hostname", name="check")
    return f"{made.text} {check.stdout.strip()}"
'''


@pytest.mark.timeout(300)
@needs_sandbox
@for_agents("gemini-cli", "claude-cli", every_day={"gemini-cli"})
def test_a_workflow_that_a_real_agent_wrote_is_corrected_and_runs_in_the_sandbox(
    agent: RealAgent, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = RIGHT.replace("AGENT", agent.name)
    prompts: list[str] = []

    def answer(request: Request) -> Turn:
        prompts.append(text := request.last_text)
        if "the file has problems" in text:
            return say(f"Corrected:\n\n```python\n{right}```\n")
        if "Write a workflow of corral" in text:
            return say(f"Here it is:\n\n```python\n{WRONG}```\n")
        if request.tool_results:
            return say("Written.")
        return call("write_file", path="note.txt", content="For Ada\n")

    monkeypatch.setenv("PATH", f"{Path(agent.program).parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in agent.env(agent.add_lane(answer).url).items():
        monkeypatch.setenv(name, value)
    words = ("Write a note", "--agent", agent.name, "--out", "note.py")
    done = corral("workflow", "draft", *words, cwd=workspace, timeout=150)
    assert (done.returncode, done.stdout) == (0, "note.py\n"), done.stderr
    assert len(prompts) == 2
    assert "line 1: " in prompts[1]
    assert "os" in prompts[1]
    assert right.splitlines()[-1] in done.stderr
    assert "Nothing has run." in done.stderr
    assert sorted(path.name for path in workspace.iterdir()) == ["note.py"]
    bounds = find_bounds((workspace / "note.py").read_text())
    assert bounds == Bounds(agents=(agent.name,), steps=30, runs=12, cost=5.0)

    run = corral("workflow", "run", "note.py", "-q", cwd=workspace, timeout=150)
    assert (run.returncode, run.stdout.strip()) == (0, "Written. 1"), run.stderr
    assert (workspace / "note.txt").read_text() == "For Ada\n"
    assert agent.failures == []
