"""``corral mcp`` as a server of real agents: they run other agents through it."""

from __future__ import annotations

import re
import sys
import time

import pytest
from support.builtin_agent import MODELS, model_env
from support.model_scripts import sent_json, steps
from support.real_agents import RealAgent, for_agents

import corral
from corral import McpServer, Policy
from corral._serving.allowance import Allowance, RunRequest
from corral._serving.caller_runs import CallerRuns
from corral.testing import Lane, Request, Turn, say

pytestmark = pytest.mark.timeout(600)

REVIEW = "The loop in seed.py never ends."


def server(lane: Lane, *options: str, **env: str) -> McpServer:
    """``corral mcp`` with the model of this lane."""
    argv = (sys.executable, "-m", "corral", "mcp", *options)
    return McpServer("agents", argv, env={**model_env(lane), **env})


@for_agents("gemini-acp", "claude-cli", "codex-cli", "opencode-cli")
@pytest.mark.deep
async def test_an_agent_lets_another_one_review(agent: RealAgent) -> None:
    reviewer = agent.add_lane([say(REVIEW)])
    home = str(agent.workspace.parent / "served-home")
    served = server(reviewer, "--agent", "corral", "--model", MODELS["gemini"], CORRAL_HOME=home)
    review = agent.mcp_tool("agents", "run", prompt="Review seed.py")
    wider = agent.mcp_tool("agents", "run", prompt="Delete all", cwd="/etc")
    options = agent.options(steps(review, wider), policy=Policy(mcp="allow"), mcp_servers=[served])
    if agent.record.mcp_model is not None:
        options["model"] = agent.record.mcp_model
    result = await corral.run(agent.name, "Get a review", **options)
    assert result.ok, result.error
    sent = sent_json(agent.turns[-1:])
    assert REVIEW in sent
    assert "is not permitted" in sent
    assert "set by the one who started corral mcp" in sent


@for_agents("gemini-acp", "claude-cli", "codex-cli", "opencode-cli")
@pytest.mark.deep
async def test_an_agent_that_was_called_calls_no_further_one(agent: RealAgent) -> None:
    """Codex passes on none of its variables to MCP servers."""
    never = agent.add_lane([say("never")])
    home = str(agent.workspace.parent / "served-home")
    served = server(never, "--agent", "corral", "--model", MODELS["gemini"], CORRAL_HOME=home)
    call = agent.mcp_tool("agents", "run", prompt="Go on")
    options = agent.options(steps(call), policy=Policy(mcp="allow"), mcp_servers=[served])
    cwd, policy = str(options.pop("cwd")), options.pop("policy")
    assert isinstance(policy, Policy)
    allowance = Allowance(agents=(agent.name,), folders=(cwd,), policy=policy, options=options)
    async with CallerRuns(allowance) as runs:
        run = await runs.start(RunRequest(prompt="Start another agent"))
        outcome = (await runs.wait(run.id, 120)).outcome
        assert outcome is not None
        assert outcome.ok, outcome.error
    assert "a run at depth 2 of agents that call agents is not permitted" in sent_json(
        agent.turns[-1:]
    )
    assert never.requests == []


@pytest.mark.deep
@for_agents("claude-cli")
async def test_claude_reads_the_review_of_gemini_after_90_seconds(
    agent: RealAgent, gemini_program: str
) -> None:
    began = time.monotonic()

    def review(_: Request) -> Turn:
        time.sleep(max(0.0, 90 - (time.monotonic() - began)))
        return say(REVIEW)

    def work(request: Request) -> Turn:
        """Ask for the review, then wait until its result has come."""
        results = [str(text) for _, text in request.tool_results]
        if not results:
            return Turn(calls=[agent.mcp_tool("agents", "run", prompt="Review seed.py")])
        if REVIEW in results[-1]:
            return say("done")
        (run,) = set(re.findall(r"\b20\d{6}-\d{6}-[0-9a-f]{6}\b", results[-1]))
        return Turn(calls=[agent.mcp_tool("agents", "wait", run=run)])

    reviewer = agent.add_lane(review)
    home = str(agent.workspace.parent / "served-home")
    served = server(
        reviewer, "--agent", "gemini-cli", "--program", gemini_program, CORRAL_HOME=home
    )
    options = agent.options(work, policy=Policy(mcp="allow"), mcp_servers=[served])
    result = await corral.run(agent.name, "Get a review", **options)
    assert result.ok, result.error
    assert time.monotonic() - began > 90
    assert REVIEW in sent_json(agent.turns[-1:])
    assert len(agent.turns) <= 5
