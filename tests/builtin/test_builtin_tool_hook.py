"""``on_tool_call`` with the built-in agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.builtin_agent import BuiltinAgent

import corral
from corral._sessions.tools.hooks import HookVerdict, ToolRequest
from corral.testing import call, say

pytest_plugins = ("support.builtin_agent_fixture",)


async def test_a_call_is_allowed_denied_or_edited(ours: BuiltinAgent, workspace: Path) -> None:
    seen: list[ToolRequest] = []

    def decide(request: ToolRequest) -> HookVerdict:
        seen.append(request)
        if request.paths == ("refused.txt",):
            return corral.Deny("not this file")
        if request.paths == ("edited.txt",):
            return corral.Edit({**request.arguments, "content": "new"})
        return None

    names = ("allowed.txt", "refused.txt", "edited.txt")
    calls = [call("write_file", file_path=name, content="old") for name in names]
    options = ours.options([*calls, say("done")], policy="edits")
    result = await corral.run(prompt="do it", on_tool_call=decide, **options)

    assert result.ok, result.error
    assert (workspace / "allowed.txt").read_text() == "old"
    assert not (workspace / "refused.txt").exists()
    assert (workspace / "edited.txt").read_text() == "new"
    assert [denied.reason for denied in result.denied] == ["denied: not this file"]
    assert {(request.name, request.kind, request.agent) for request in seen} == {
        ("write_file", "edit", "corral")
    }


async def test_the_policy_is_not_widened_by_a_hook(ours: BuiltinAgent, workspace: Path) -> None:
    seen: list[str | None] = []

    def decide(request: ToolRequest) -> HookVerdict:
        seen.append(request.command)
        return corral.Edit({"command": "touch denied.txt"})

    calls = [call("shell", command="touch denied.txt"), call("shell", command="touch other.txt")]
    policy = corral.Policy(shell="allow", shell_rules=("deny touch denied*",))
    options = ours.options([*calls, say("done")], policy=policy)
    result = await corral.run(prompt="do it", on_tool_call=decide, **options)
    assert len(result.denied) == 2
    assert seen == ["touch other.txt"]
    assert sorted(path.name for path in workspace.iterdir() if path.suffix == ".txt") == []


async def test_an_edit_that_does_not_fit_the_tool_is_an_error_of_the_call(
    ours: BuiltinAgent, workspace: Path
) -> None:
    script = [call("write_file", file_path="a.txt", content="x"), say("done")]
    options = ours.options(script, policy="edits")
    result = await corral.run(
        prompt="do it", on_tool_call=lambda _: corral.Edit({"file_path": 5}), **options
    )
    assert result.ok
    assert not (workspace / "a.txt").exists()
    assert "do not fit write_file" in str(ours.requests[-1].tool_results)


async def test_a_run_that_is_cancelled_while_the_hook_works_makes_no_call(
    ours: BuiltinAgent, workspace: Path
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def waiting(_: ToolRequest) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    script = [call("write_file", file_path="a.txt", content="x"), say("done")]
    options = ours.options(script, policy="edits")
    task = asyncio.create_task(corral.run(prompt="do it", on_tool_call=waiting, **options))
    async with asyncio.timeout(60):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended.is_set()
    assert not (workspace / "a.txt").exists()


async def test_the_turn_does_not_become_idle_while_the_hook_works(
    ours: BuiltinAgent, workspace: Path
) -> None:
    async def slow(_: ToolRequest) -> None:
        await asyncio.sleep(0.5)

    script = [call("write_file", file_path="a.txt", content="x"), say("done")]
    options = ours.options(script, policy="edits", idle_timeout=0.2)
    result = await corral.run(prompt="do it", on_tool_call=slow, **options)
    assert result.ok, result.error
    assert (workspace / "a.txt").exists()
