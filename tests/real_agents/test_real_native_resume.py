"""The command that the page gives to copy continues the session in the agent's own program."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.real_agents import RealAgent, for_agents

from corral._agents.codex import launch as codex
from corral._view.live_runs import LiveRuns
from corral._view.session_logs import SessionLogs
from corral._view.session_view import SessionViews, open_session
from corral.testing import say

pytestmark = pytest.mark.timeout(400)


@for_agents("gemini-cli", "claude-cli", "codex-cli")
async def test_the_native_command_resumes_the_session(agent: RealAgent) -> None:
    result = await agent.run(lambda _: say("noted"), "the word is xylophone", sandbox="off")
    assert result.resume_token is not None, result
    detail = SessionViews(SessionLogs()).detail(open_session(result.resume_token), LiveRuns())
    command = detail.facts.native_resume_command
    assert command is not None
    prompt = "-p 'and now?'"
    if agent.name == "codex-cli":  # without a terminal, and with the URL of the scripted model
        command = command.replace(codex.OPENAI, agent.env(agent.lane.url)["OPENAI_BASE_URL"])
        command = command.replace(" resume ", " exec --skip-git-repo-check resume ")
        prompt = "'and now?'"
    before = len(agent.lane.requests)
    done = subprocess.run(
        f"{command} {prompt}",
        shell=True,
        env={**os.environ, **agent.env(agent.lane.url)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "noted"), done.stderr
    texts = ["\n".join(request.texts) for request in agent.lane.requests[before:]]
    assert any("xylophone" in text for text in texts)
