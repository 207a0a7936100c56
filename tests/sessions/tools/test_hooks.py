"""The caller's ``on_tool_call``: what it may return, and what happens when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.goldens import check_golden

import corral
from corral import errors
from corral._agents import registry
from corral._protocol.ndjson import RawEvent
from corral._sessions.permissions import (
    PermissionAnswer,
    PermissionBroker,
    PermissionQuestion,
    PermissionQuestions,
)
from corral._sessions.prepare import prepare
from corral._sessions.tools.hooks import Allow, Deny, Edit, HookVerdict, ToolCallHook, ToolRequest
from corral.events import PermissionDecision, PermissionRequest
from corral.policy import Action, Policy
from corral.values import JsonObject

WAIT = 60.0
"""Seconds that anything here may take."""
NOT_JSON: Any = object()
REQUEST = ToolRequest("1", "shell", {"command": "ls"}, kind="execute", command="ls")


async def decide(function: Callable[[ToolRequest], Any], timeout: float = WAIT) -> HookVerdict:
    return await ToolCallHook(function, agent="corral", cwd="/w", timeout=timeout).decide(REQUEST)


def raising(_: ToolRequest) -> HookVerdict:
    raise ValueError("no such user")


async def raising_later(_: ToolRequest) -> HookVerdict:
    raise ValueError("no such user")


def leaving(_: ToolRequest) -> HookVerdict:
    raise SystemExit(3)


async def cancelled(_: ToolRequest) -> HookVerdict:
    raise asyncio.CancelledError


@pytest.mark.parametrize("function", [raising, raising_later])
async def test_a_hook_that_raises_denies_the_call(
    function: Callable[[ToolRequest], HookVerdict | Awaitable[HookVerdict]],
) -> None:
    assert await decide(function) == Deny("on_tool_call failed: ValueError: no such user")


@pytest.mark.parametrize("function", [leaving, cancelled])
async def test_a_hook_does_not_end_the_run_by_leaving(
    function: Callable[[ToolRequest], HookVerdict | Awaitable[HookVerdict]],
) -> None:
    verdict = await decide(function)
    assert isinstance(verdict, Deny)
    assert "on_tool_call failed" in verdict.reason


@pytest.mark.parametrize("returned", [True, False, "allow", {}, Edit({"a": NOT_JSON}), Allow])
async def test_a_hook_that_returns_nonsense_denies_the_call(returned: object) -> None:
    verdict = await decide(lambda _: returned)
    assert isinstance(verdict, Deny)
    assert "on_tool_call returned" in verdict.reason


async def test_a_hook_may_return_none_or_a_verdict_now_or_later() -> None:
    async def later(request: ToolRequest) -> HookVerdict:
        return Edit({**request.arguments, "cwd": request.cwd})

    assert await decide(lambda _: None) == Allow()
    assert await decide(lambda _: Allow()) == Allow()
    assert await decide(lambda _: Deny("no")) == Deny("no")
    assert await decide(later) == Edit({"command": "ls", "cwd": "/w"})
    assert await decide(later) == Edit({"command": "ls", "cwd": "/w"})


async def test_a_slow_hook_denies_the_call_and_does_not_block_the_loop() -> None:
    go_on = threading.Event()
    try:
        verdict = await decide(lambda _: go_on.wait(WAIT) and None, timeout=0.01)
    finally:
        go_on.set()
    assert verdict == Deny("on_tool_call did not decide in 0.01 s")


async def test_a_cancelled_decision_cancels_an_async_hook() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def waiting(_: ToolRequest) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(decide(waiting))
    async with asyncio.timeout(WAIT):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_calls_are_shown_one_after_the_other() -> None:
    inside, most = 0, 0

    async def counting(_: ToolRequest) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    hook = ToolCallHook(counting)
    await asyncio.gather(*(hook.decide(REQUEST) for _ in range(5)))
    assert most == 1


class Agent:
    """Asks for permission as a protocol does, and keeps the answers."""

    def __init__(
        self,
        hook: Callable[[ToolRequest], HookVerdict | Awaitable[HookVerdict]],
        policy: Policy,
        ask: Callable[[PermissionRequest], Any] | None = None,
    ) -> None:
        self.events: list[RawEvent] = []
        self.answers: list[tuple[str, JsonObject]] = []
        self.answered = asyncio.Event()
        broker = PermissionBroker(policy, ask, hook=ToolCallHook(hook))
        self.questions = PermissionQuestions(broker, self.events.append, set())

    def question(self, command: str, *, editable: bool = True) -> PermissionQuestion:
        def reply(answer: PermissionAnswer) -> None:
            self.answers.append((answer.decision, {"command": command}))
            self.answered.set()

        def edited(arguments: JsonObject) -> PermissionQuestion:
            other = self.question(str(arguments["command"]))
            return PermissionQuestion(
                other.request, other.action, (), other.reply, other.edited, new_input=arguments
            )

        request = PermissionRequest("7", kind="execute", input={"command": command})
        action = Action("shell", "execute", command)
        return PermissionQuestion(request, action, (), reply, edited if editable else None)

    async def answer(self, command: str, *, editable: bool = True) -> tuple[str, JsonObject]:
        self.questions.put(self.question(command, editable=editable))
        async with asyncio.timeout(WAIT):
            await self.answered.wait()
        return self.answers[-1]


FREE = Policy(shell="allow", shell_rules=("deny rm *",))


async def test_the_policy_comes_first_and_judges_an_edited_call_again() -> None:
    seen: list[str | None] = []

    def dangerous(request: ToolRequest) -> HookVerdict:
        seen.append(request.command)
        return Edit({"command": "rm x"})

    assert await Agent(dangerous, FREE).answer("rm y") == ("deny", {"command": "rm y"})
    assert seen == []
    assert await Agent(dangerous, FREE).answer("ls") == ("deny", {"command": "rm x"})
    assert seen == ["ls"]


async def test_an_edited_call_is_allowed_with_its_new_input() -> None:
    agent = Agent(lambda _: Edit({"command": "ls -l"}), FREE)
    assert await agent.answer("ls") == ("allow_once", {"command": "ls -l"})
    decision = agent.events[-1]
    assert isinstance(decision, PermissionDecision)
    assert (decision.by, decision.input) == ("hook", {"command": "ls -l"})


async def test_an_edit_is_a_denial_where_it_is_not_possible() -> None:
    agent = Agent(lambda _: Edit({"command": "ls -l"}), FREE)
    assert await agent.answer("ls", editable=False) == ("deny", {"command": "ls"})
    assert "does not support" in str(agent.events[-1])


async def test_a_hook_that_allows_does_not_answer_for_a_person() -> None:
    asked: list[object] = []

    def person(request: PermissionRequest) -> str:
        asked.append(request.input)
        return "deny"

    policy = Policy(shell="ask")
    assert (await Agent(lambda _: Allow(), policy, person).answer("ls"))[0] == "deny"
    assert asked == [{"command": "ls"}]
    agent = Agent(lambda _: Edit({"command": "ls -l"}), policy, person)
    assert (await agent.answer("ls"))[0] == "deny"
    assert asked[-1] == {"command": "ls -l"}
    assert (await Agent(lambda _: Deny("no"), policy, person).answer("ls"))[0] == "deny"
    assert len(asked) == 2


async def test_a_request_that_the_agent_takes_back_is_not_answered() -> None:
    started = asyncio.Event()

    async def waiting(_: ToolRequest) -> None:
        started.set()
        await asyncio.Event().wait()

    agent = Agent(waiting, FREE)
    agent.questions.put(agent.question("ls"))
    async with asyncio.timeout(WAIT):
        await started.wait()
    assert agent.questions.is_asking
    assert agent.questions.withdraw("7")
    await agent.questions.close()
    assert agent.answers == []


def test_an_agent_that_does_not_ask_is_an_error_before_the_start() -> None:
    with pytest.raises(errors.ConfigError, match="not available with copilot-acp") as e:
        prepare("copilot-acp", {}, on_tool_call=lambda _: None)
    assert "gemini-acp" in (e.value.hint or "")


def test_on_tool_call_must_be_a_function() -> None:
    with pytest.raises(errors.ConfigError, match="on_tool_call must be a function, got: str"):
        ToolCallHook("deny")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_policy_under_which_calls_are_not_shown_is_an_error_before_the_start() -> None:
    with pytest.raises(errors.PolicyNotEnforceable, match="would not show every call"):
        prepare("gemini-acp", {"policy": corral.Policy.native()}, on_tool_call=lambda _: None)


def test_the_documentation_says_what_each_agent_supports() -> None:
    path = Path(__file__).parents[3] / "docs" / "tools.md"
    means = {
        "edit": "allow, deny, edit",
        "decide": "allow, deny; an `Edit` is a denial: the protocol has no way to change a call",
        "none": "not available: `ConfigError` before the start",
    }
    rows = ["| agent | |", "|---|---|"]
    for support, meaning in means.items():
        found = [each.name for each in registry.all_agents() if each.tool_call_hook == support]
        rows.append(f"| {', '.join(f'`{name}`' for name in found)} | {meaning} |")
    begin, end = "<!-- made of the hooks of agents -->", "<!-- end -->"
    before, _, rest = path.read_text("utf-8").partition(begin)
    table = "\n".join(rows)
    check_golden(path, f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}")
