"""MCP servers of the built-in agent: its tools follow the policy, and its programs end with it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from support.builtin_agent import BuiltinAgent, events_of, last_tool_result, tool_outcomes
from support.mcp_servers import notes_server
from support.processes import processes_matching
from support.sandbox import needs_sandbox

import corral
from corral import Policy
from corral._sessions.tools.hooks import HookVerdict, ToolRequest
from corral.events import PermissionRequest, ToolResult, ToolUse
from corral.testing import call, say

pytest_plugins = ("support.builtin_agent_fixture",)

KEEP = "mcp__notes__keep"
TOKEN = "canary-token-123456"


async def test_the_tools_of_a_server_are_used_over_several_prompts(
    ours: BuiltinAgent, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    seen: list[ToolRequest] = []

    def decide(request: ToolRequest) -> HookVerdict:
        seen.append(request)
        return corral.Edit({"text": "edited"}) if request.arguments["text"] == "two" else None

    texts = ("one", "two", "crash", "three")
    script = [turn for text in texts for turn in (call(KEEP, text=text), say("ok"))]
    options = ours.options(
        script, policy=Policy(mcp="allow"), mcp_servers=[notes_server(notes, NOTES_TOKEN=TOKEN)]
    )
    results: list[ToolResult] = []
    async with corral.session(on_tool_call=decide, **options) as session:
        for _ in texts:
            events = [event async for event in session.prompt("keep it")]
            (use,) = events_of(events, ToolUse)
            assert (use.name, use.kind) == (KEEP, "mcp")
            results += events_of(events, ToolResult)
            if use.input == {"text": "two"}:
                assert (notes / "note.txt").read_text() == "edited"
        assert processes_matching(str(notes))
    assert not processes_matching(str(notes))
    assert [result.status for result in results] == ["success", "success", "error", "success"]
    assert results[0].output is not None
    assert TOKEN not in results[0].output
    assert "the disk is full" in str(results[2].error)
    assert KEEP in ours.requests[0].tools
    assert [(request.name, request.kind) for request in seen] == [(KEEP, "mcp")] * 4


async def test_the_policy_decides_about_the_tools_of_a_server(
    ours: BuiltinAgent, tmp_path: Path
) -> None:
    servers = [notes_server(tmp_path)]

    def refuse(request: PermissionRequest) -> Literal["deny"]:
        assert (request.kind, request.title) == ("mcp", KEEP)
        return "deny"

    events = await ours.events(
        [call(KEEP, text="x"), say("ok")], ask=refuse, policy=Policy(), mcp_servers=servers
    )
    assert tool_outcomes(events) == [(KEEP, "denied")]
    assert not (tmp_path / "note.txt").exists()

    async def names(policy: Policy) -> tuple[str, ...]:
        await ours.run([say("ok")], policy=policy, mcp_servers=servers)
        return ours.requests[0].tools

    (tmp_path / "started").unlink()
    assert KEEP not in await names(Policy(mcp="deny", own_mcp="allow"))
    assert not (tmp_path / "started").exists()
    assert KEEP not in await names(Policy(mcp="allow", deny_tools=(KEEP,)))
    assert await names(Policy(mcp="allow", allow_tools=(KEEP,))) == (KEEP,)


async def test_a_server_that_ends_at_once_fails_the_run_before_the_model_is_called(
    ours: BuiltinAgent,
) -> None:
    dead = corral.McpServer("dead", ("/bin/sh", "-c", "echo no config >&2; exit 3"))
    result = await ours.run([say("never")], policy="all", mcp_servers=[dead])
    assert result.error is not None
    assert result.error.code == "tool_failed"
    assert "'dead' ended with exit code 3: no config" in result.error.message
    assert ours.requests == []


@needs_sandbox
async def test_the_program_of_a_server_is_in_the_sandbox(
    ours: BuiltinAgent, workspace: Path, tmp_path: Path
) -> None:
    policy = Policy(read="allow", write="allow", shell="allow", network="deny", mcp="allow")
    script = [call(KEEP, text="x"), say("ok")]
    outside = [notes_server(tmp_path)]  # it writes files there: into a folder of the sandbox
    await ours.run(script, policy=policy, sandbox="require", mcp_servers=outside)
    assert not (tmp_path / "started").exists()
    inside = [notes_server(workspace)]
    result = await ours.run(script, policy=policy, sandbox="require", mcp_servers=inside)
    assert result.ok, result.error
    assert (workspace / "note.txt").read_text() == "x"
    assert "kept" in last_tool_result(ours.requests[1], KEEP)
