"""``on_tool_call`` with real agents: a call is allowed, denied or edited before it is made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from support.files import file_names
from support.real_agents import AgentRecord, RealAgent, for_agents
from support.sandbox import needs_sandbox

import corral
from corral._agents.gemini import launch
from corral._agents.spec import LaunchContext
from corral._sessions.tools.hooks import HookVerdict, ToolRequest
from corral.options import RunOptions
from corral.testing import Turn
from corral.values import JsonObject

pytestmark = pytest.mark.timeout(600)


def _is_hooked(record: AgentRecord) -> bool:
    return record.spec.tool_call_hook != "none"


def _edits(record: AgentRecord) -> bool:
    return record.spec.tool_call_hook == "edit"


@for_agents(_is_hooked)
async def test_each_call_is_allowed_denied_or_edited_by_the_hook(
    agent: RealAgent, workspace: Path, seed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also a read, which no policy asks about. An edit does not widen the policy, and is a denial
    where the agent cannot edit a call."""
    outside = tmp_path_factory.mktemp("outside") / "moved.txt"
    seen: list[ToolRequest] = []

    async def decide(request: ToolRequest) -> HookVerdict:
        seen.append(request)
        named = str((request.paths, request.arguments))
        if "refused.txt" in named:
            return corral.Deny("not this file")
        if "edited.txt" in named:
            return corral.Edit(_with_text(request.arguments, "original", "replaced"))
        if "moved.txt" in named:
            given = _with_text(request.arguments, str(workspace / "moved.txt"), "moved.txt")
            return corral.Edit(_with_text(given, "moved.txt", str(outside)))
        return corral.Deny("nothing is read") if request.kind == "read" else None

    reads = [agent.read(seed)] if agent.record.has_tool("read") else []
    calls = [
        agent.write("allowed.txt", "kept\n"),
        agent.write("refused.txt", "lost\n"),
        agent.write("edited.txt", "original\n"),
        agent.write("moved.txt", "moved\n"),
        *reads,
    ]
    results = await agent.attempt(calls, on_tool_call=decide, policy="edits")

    assert (workspace / "allowed.txt").read_text() == "kept\n"
    names = ["allowed.txt", *(["edited.txt"] if _edits(agent.record) else []), "seed.txt"]
    assert file_names(workspace) == names
    if _edits(agent.record):
        assert (workspace / "edited.txt").read_text() == "replaced\n"
    assert not outside.exists()
    # In any order: an agent may run the calls of one response side by side.
    kinds = sorted(request.kind for request in seen)
    assert kinds == ["edit"] * 4 + ["read"] * len(reads), seen
    assert all(request.agent == agent.name for request in seen)
    assert all(request.cwd == str(workspace) for request in seen)
    assert not any("seed words" in str(request.tool_results) for request in agent.requests)
    if agent.record.spec.reports_all_denials:
        denied = "\n".join(str(each) for result in results for each in result.denied)
        assert "not this file" in denied
        assert _edits(agent.record) or "does not support" in denied


@for_agents(_is_hooked)
async def test_the_hook_is_not_asked_about_what_the_policy_denies(
    agent: RealAgent, workspace: Path
) -> None:
    seen: list[ToolRequest] = []

    def decide(request: ToolRequest) -> HookVerdict:
        seen.append(request)
        return corral.Allow()

    script = [Turn(calls=[agent.write("new.txt")]), Turn(text="done", repeat="forever")]
    await agent.run(script, on_tool_call=decide, policy="reads")
    assert not (workspace / "new.txt").exists()
    assert seen == []


def _with_text(arguments: JsonObject, before: str, after: str) -> JsonObject:
    return {
        key: value.replace(before, after) if isinstance(value, str) else value
        for key, value in arguments.items()
    }


@for_agents("gemini-cli")
async def test_an_agent_that_leaves_the_hook_out_is_ended(
    agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = launch._settings  # pyright: ignore[reportPrivateUsage]

    def without_hooks(run: RunOptions, place: LaunchContext, method: str) -> JsonObject:
        settings = written(run, place, method)
        del settings["hooks"]
        return settings

    monkeypatch.setattr(launch, "_settings", without_hooks)  # as another version might do
    script = [Turn(calls=[agent.write("new.txt")]), Turn(text="done", repeat="forever")]
    result = await agent.run(script, on_tool_call=lambda _: None, policy="edits")
    assert result.error is not None
    assert result.error.code == "policy_not_loaded"
    assert "without showing it to on_tool_call" in result.error.message


@for_agents("gemini-acp", "gemini-cli", "claude-cli")
async def test_a_run_that_is_cancelled_while_the_hook_works_makes_no_call(
    agent: RealAgent, workspace: Path
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def waiting(_: ToolRequest) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    script = [Turn(calls=[agent.write("new.txt")]), Turn(text="done", repeat="forever")]
    run = agent.run(script, on_tool_call=waiting, policy="edits", grace=1)
    task = asyncio.create_task(run)
    async with asyncio.timeout(150):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended.is_set()
    assert not (workspace / "new.txt").exists()


@for_agents("gemini-acp")
async def test_the_hook_of_a_pool_sees_the_folder_of_each_prompt(
    agent: RealAgent, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = [tmp_path_factory.mktemp("pool").resolve() for _ in range(2)]

    def only_the_first(request: ToolRequest) -> HookVerdict:
        return None if request.cwd == str(folders[0]) else corral.Deny("not here")

    script = [
        Turn(calls=[agent.write("new.txt")]),
        Turn(text="done"),
        Turn(calls=[agent.write("new.txt")]),
        Turn(text="done", repeat="forever"),
    ]
    options = agent.options(script, policy="edits")
    options.pop("cwd", None)
    async with corral.pool(agent.name, on_tool_call=only_the_first, **options) as pool:
        for folder in folders:
            await pool.run("do it", cwd=folder)
    assert [(folder / "new.txt").exists() for folder in folders] == [True, False]


@needs_sandbox
@for_agents(_edits)
@pytest.mark.parametrize("network", ["deny", pytest.param("allow", marks=pytest.mark.deep)])
async def test_the_hook_is_asked_from_inside_a_sandbox(
    agent: RealAgent, workspace: Path, network: Literal["deny", "allow"]
) -> None:
    if network == "allow" and agent.name == "codex-cli":
        pytest.skip("it searches the web without asking")

    def decide(request: ToolRequest) -> HookVerdict:
        return corral.Deny("not this file") if "refused.txt" in str(request.arguments) else None

    calls = [agent.write("allowed.txt", "kept\n"), agent.write("refused.txt", "lost\n")]
    script = [*(Turn(calls=[call]) for call in calls), Turn(text="done", repeat="forever")]
    policy = corral.Policy(write="allow", network=network)
    options = agent.options(script, policy=policy, sandbox="require")
    result = await corral.run(agent.name, "go", on_tool_call=decide, **options)
    assert result.ok, result.error
    assert (workspace / "allowed.txt").exists()
    assert not (workspace / "refused.txt").exists()
    assert "not this file" in f"{result.denied[0].rule} {result.denied[0].reason}"


_WITHOUT_SHELL = ("codex-acp", "opencode-acp")
"""With a shell they would make calls without asking, so they are refused."""


@for_agents(lambda record: _is_hooked(record) and record.name not in _WITHOUT_SHELL)
async def test_a_command_runs_if_the_hook_allows_it_and_not_if_it_denies_it(
    agent: RealAgent, workspace: Path
) -> None:
    seen: list[str | None] = []

    def decide(request: ToolRequest) -> HookVerdict:
        seen.append(request.command)
        return corral.Deny("no") if "refused" in str(request.command) else corral.Allow()

    commands = ["touch allowed.txt", "touch refused.txt"]
    script = [*(Turn(calls=[agent.shell(command)]) for command in commands)]
    await agent.run(
        [*script, Turn(text="done", repeat="forever")],
        on_tool_call=decide,
        policy=corral.Policy(write="allow", shell="allow"),
    )
    assert seen == commands
    assert (workspace / "allowed.txt").exists()
    assert not (workspace / "refused.txt").exists()


@for_agents(*_WITHOUT_SHELL)
async def test_a_policy_under_which_an_agent_does_not_ask_is_refused(agent: RealAgent) -> None:
    with pytest.raises(corral.errors.PolicyNotEnforceable, match="would not show every call"):
        await agent.run([], on_tool_call=lambda _: None, policy="all")
