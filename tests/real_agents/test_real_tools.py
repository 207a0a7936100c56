"""Python functions as tools of real agents, over MCP."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from support.mcp_servers import notes_server
from support.model_scripts import sent_json, steps
from support.processes import processes_matching
from support.raw_server import plain, raw_server, respond_with
from support.real_agents import RealAgent, for_agents

import corral
from corral import Policy
from corral._sessions.tools.mcp_server import ToolServer
from corral.events import ToolUse
from corral.models import Image
from corral.testing import Turn, say

pytestmark = pytest.mark.timeout(600)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)
SHOW_IMAGES = ("gemini-acp", "claude-cli", "codex-cli")
"""Agents that pass images of tools on to the scripted model. Others do it for models they know."""


@for_agents(lambda record: record.supports("mcp_servers"))
async def test_python_functions_are_tools_of_the_agent(agent: RealAgent, tmp_path: Path) -> None:
    called: list[int] = []

    def double(number: int) -> list[object]:
        """Doubles a number, and shows it."""
        called.append(number)
        return [2 * number, Image(PICTURE)]

    # Not "edits": Copilot's rules cannot protect what an edit may not change.
    policy = Policy(mcp="allow")
    calls = steps(
        agent.mcp_tool("corral", "double", number=21), agent.mcp_tool("notes", "keep", text="x")
    )
    options = agent.options(calls, policy=policy, mcp_servers=[notes_server(tmp_path)])
    if agent.record.mcp_model is not None:
        options["model"] = agent.record.mcp_model
    events: list[corral.Event] = []
    result = await corral.run(
        agent.name, "which?", tools=[double], on_event=events.append, **options
    )
    assert result.ok, result.error
    assert called == [21]
    assert (tmp_path / "note.txt").read_text() == "x"
    sent = sent_json(agent.turns[-1:])
    assert "42" in sent
    if agent.name in SHOW_IMAGES:
        assert base64.b64encode(PICTURE).decode()[:40] in sent
    uses = [event for event in events if isinstance(event, ToolUse)]
    assert [use.kind for use in uses] == ["mcp", "mcp"]
    assert [use.input for use in uses] == [{"number": 21}, {"text": "x"}]


@for_agents("gemini-acp")
async def test_a_tool_server_that_refuses_the_token_of_the_agent_is_an_error(
    agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"Authorization": "Bearer wrong"}

    def forged(self: ToolServer) -> corral.McpServer:
        return corral.McpServer(name="corral", url=self.url, headers=wrong, own=True)

    monkeypatch.setattr(ToolServer, "mcp_server", property(forged))
    options = agent.options([Turn(text="I have no tools.", repeat="forever")], policy="edits")
    result = await corral.run(agent.name, "add", tools=[add], **options)
    assert result.error is not None
    assert result.error.code == "tool_failed"
    assert "did not list the tools" in result.error.message


@for_agents(lambda record: record.supports("mcp_servers"))
async def test_each_server_that_cannot_be_used_is_named_before_the_agent_starts(
    agent: RealAgent, tmp_path: Path
) -> None:
    refused = plain(b"no token", "www-authenticate: Bearer", status=401)
    async with raw_server(respond_with(refused)) as web:
        late = "echo the key $KEY is old >&2; exit 3"
        token = {"Authorization": "Bearer wrong-token"}
        servers = [
            corral.McpServer("missing", ("/nonexistent/program",)),
            corral.McpServer("ends", ("/bin/sh", "-c", late), env={"KEY": "canary-7654321"}),
            corral.McpServer("locked", url=web.url, headers=token),
            notes_server(tmp_path),
        ]
        events = await agent.events([say("never")], policy="all", mcp_servers=servers)
    assert [event.type for event in events] == ["init", "error", "done"]
    result = corral.result_from_events(events)
    assert result.error is not None
    assert (result.status, result.error.code) == ("error", "tool_failed")
    message = result.error.message
    assert "'missing' cannot be used: /nonexistent/program" in message
    assert "'ends' ended with exit code 3: the key" in message
    assert "'locked' answered HTTP 401: no token (not authorized)" in message
    assert "'notes'" not in message
    assert "canary" not in message
    assert "wrong-token" not in message
    assert agent.requests == []
    assert not processes_matching(str(tmp_path / "started"))


@for_agents("gemini-acp")
async def test_hooks_run_between_the_agent_and_the_function(agent: RealAgent) -> None:
    calls = [Turn(calls=[agent.mcp_tool("corral", "add", a=n, b=0)]) for n in range(2)]
    tools = corral.Tools([add], hooks=[corral.call_budget(1)])
    options = agent.options([*calls, say("done")], policy="edits")
    result = await corral.run(agent.name, "add twice", tools=tools, check=True, **options)
    assert result.ok
    first, second = (str(answer) for _, answer in agent.turns[-1].tool_results)
    assert "error" not in first
    assert "all 1 tool calls of this run are made" in second


def deployed_version() -> str:
    """The version that is deployed."""
    return "4.5.6"


async def first_requests_have_the_tool(agent: RealAgent, starts: int) -> list[bool]:
    """For each of so many starts at once, whether its first request declares the tool."""

    async def start() -> bool:
        async with ToolServer([deployed_version], name="versions") as server:
            options = agent.options(
                [Turn(text="done", repeat="forever")],
                policy="all",
                mcp_servers=[server.mcp_server],
                timeout=500,
                startup_timeout=500,
            )
            lane = agent.lane
            result = await corral.run(agent.name, "which?", **options)
        assert result.ok, result.error
        return agent.mcp_tool("versions", "deployed_version").name in lane.requests[0].tools

    return list(await asyncio.gather(*(start() for _ in range(starts))))


@for_agents("claude-cli")
async def test_the_first_request_waits_for_a_slow_tool_server(
    agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ToolServer._app  # pyright: ignore[reportPrivateUsage]

    async def slowly(self: ToolServer, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await serve(self, scope, receive, send)

    monkeypatch.setattr(ToolServer, "_app", slowly)
    assert await first_requests_have_the_tool(agent, 1) == [True]


@pytest.mark.deep
@for_agents("claude-cli")
async def test_the_first_requests_of_fifty_starts_at_once_have_the_tool(agent: RealAgent) -> None:
    assert await first_requests_have_the_tool(agent, 50) == [True] * 50
