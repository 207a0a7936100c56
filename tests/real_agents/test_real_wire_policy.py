"""Tool calls of agents that cannot ask, judged in the model's responses before the agent sees them.

What was refused is looked for on the disk and in the requests of the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.changing_relay import changing_relay
from support.files import file_names
from support.model_scripts import tool_results_json
from support.real_agents import USAGE, RealAgent, for_agents

import corral
from corral import Policy, result_from_events
from corral.errors import PolicyNotEnforceable
from corral.events import (
    Decision,
    Event,
    ModelCall,
    PermissionDecision,
    PermissionRequest,
)
from corral.testing import Call, Request, Turn

pytestmark = pytest.mark.timeout(400)

JUDGED = ("gemini-cli", "codex-cli", "opencode-cli", "pi-cli")
MOST = ("gemini-cli",)
"""With these, each behavior is tested every day."""
DENIED = "shell_rules: deny touch denied*"
RULES = Policy(write="allow", shell="ask", shell_rules=("deny touch denied*",))


class Person:
    """Answers each question, and notes it. ``others``: a word in a question → its answer."""

    def __init__(self, usual: Decision, others: Mapping[str, Decision] | None = None) -> None:
        self.questions: list[PermissionRequest] = []
        self._usual: Decision = usual
        self._others: Mapping[str, Decision] = others or {}

    def __call__(self, request: PermissionRequest) -> Decision:
        self.questions.append(request)
        named = json.dumps([request.title, request.input])
        for word, decision in self._others.items():
            if word in named:
                return decision
        return self._usual


def decisions(events: list[Event]) -> list[tuple[str, str, str | None]]:
    found = [each for each in events if isinstance(each, PermissionDecision)]
    return [(each.decision, each.by, each.rule) for each in found]


@for_agents(*JUDGED)
async def test_calls_are_refused_by_a_rule_or_a_person_and_the_others_are_made(
    agent: RealAgent, workspace: Path
) -> None:
    """A refused call is replayed to the model, an answer for the session is asked for once, and if
    one of several calls is refused none is made."""
    person = Person("allow_once", {"no.txt": "deny", "log.txt": "allow_session"})
    both = [agent.shell("touch beside.txt"), agent.shell("touch denied.txt")]
    turns = [
        [agent.shell("touch denied.txt")],
        [agent.shell("touch asked.txt")],
        [agent.write("no.txt")],
        [agent.write("yes.txt")],
        [agent.shell("echo x >> log.txt")],
        [agent.shell("echo x >> log.txt")],
        both,
        [agent.shell("touch one.txt"), agent.shell("touch two.txt")],
    ]
    script = [*(Turn(calls=calls, usage=USAGE) for calls in turns), Turn(text="done", usage=USAGE)]
    policy = replace(RULES, write="ask")
    events = await agent.events(script, ask=person, policy=policy)
    result = result_from_events(events)
    assert result.ok, result.error
    assert result.final_text.endswith("done")
    names = ["asked.txt", "log.txt", "one.txt", "two.txt", "yes.txt"]
    assert file_names(workspace) == names
    assert (workspace / "log.txt").read_text() == "x\nx\n"

    by_rule = ("deny", "policy", DENIED)
    by_person = [(kind, "person", "asked") for kind in ("allow_once", "deny", "allow_once")]
    assert decisions(events)[:4] == [by_rule, *by_person]
    assert f"Denied by policy: {DENIED}" in tool_results_json(agent.turns[1])
    beside = tool_results_json(agent.turns[7])
    assert "Not made, because another call of the same message" in beside
    assert f"Denied by policy: {DENIED}" in beside
    # Not about the call beside the refused one, and once about the log.
    kinds = ["execute", "edit", "edit", "execute", "execute", "execute"]
    assert [question.kind for question in person.questions] == kinds
    assert [each.rule for each in result.denied] == [DENIED, "asked", DENIED]
    calls = [event for event in events if isinstance(event, ModelCall) and not event.side]
    assert len(calls) == 9
    assert result.usage_source == "metered"


@for_agents(*JUDGED, every_day=MOST)
async def test_after_three_refusals_in_a_row_the_response_ends(
    agent: RealAgent, workspace: Path
) -> None:
    script = [
        Turn(text="I try.", calls=[agent.shell("touch denied.txt")], usage=USAGE, repeat="forever")
    ]
    events = await agent.events(script, ask=Person("allow_once"), policy=RULES)
    result = result_from_events(events)
    assert file_names(workspace) == []
    assert result.ok, result.error
    assert "the policy refused 3 tool calls in a row" in result.final_text
    assert "deny touch denied*" in result.final_text
    assert len(agent.turns) == 3
    assert len(result.denied) == 3


@for_agents(*JUDGED, every_day=MOST)
async def test_without_the_proxy_what_the_policy_asks_about_is_denied(
    agent: RealAgent, workspace: Path
) -> None:
    person = Person("allow_once")
    script = [Turn(calls=[agent.shell("touch asked.txt")]), Turn(text="done", repeat="forever")]
    await agent.events(script, ask=person, policy=Policy(write="allow"), meter=False)
    assert file_names(workspace) == []
    assert person.questions == []


@for_agents(*JUDGED, every_day=MOST)
async def test_a_refusal_that_does_not_fit_into_the_budget_ends_the_run(
    agent: RealAgent, workspace: Path
) -> None:
    script = [Turn(calls=[agent.shell("touch denied.txt")], usage=USAGE, repeat="forever")]
    result = await agent.run(script, ask=Person("deny"), policy=RULES, max_calls=2)
    assert (result.status, len(agent.turns)) == ("max_budget", 2)
    assert file_names(workspace) == []


@for_agents(*JUDGED, every_day=MOST)
async def test_the_idle_timeout_does_not_count_while_a_person_is_asked(
    agent: RealAgent, workspace: Path
) -> None:
    async def ask(request: PermissionRequest) -> Decision:
        await asyncio.sleep(6)
        return "allow_once"

    script = [Turn(calls=[agent.shell("touch asked.txt")]), Turn(text="done")]
    result = await agent.run(script, ask=ask, policy=RULES, idle_timeout=4)
    assert result.ok, result.error
    assert file_names(workspace) == ["asked.txt"]


@for_agents("gemini-cli")
async def test_the_calls_of_a_sub_agent_are_judged(agent: RealAgent, workspace: Path) -> None:
    [delegate] = agent.calls("delegate", prompt="run the errand")
    person = Person("allow_once")

    steps = iter(
        (
            Turn(calls=[agent.shell("touch denied.txt")]),
            Turn(calls=[agent.shell("touch asked.txt")]),
            Turn(calls=[Call("complete_task", {"result": "did it", "response": "did it"})]),
        )
    )

    def answer(request: Request) -> Turn:
        if "complete_task" in request.tools:
            return next(steps)
        return Turn(calls=[delegate]) if not request.tool_results else Turn(text="done")

    events = await agent.events(answer, ask=person, policy=RULES)
    assert result_from_events(events).final_text == "done"
    assert file_names(workspace) == ["asked.txt"]
    assert [each for _, _, each in decisions(events)] == [
        "asked",
        "shell_rules: deny touch denied*",
        "asked",
        "harmless",
    ]


@for_agents(*JUDGED, every_day=MOST)
async def test_cancel_ends_the_run_as_denied(agent: RealAgent, workspace: Path) -> None:
    script = [Turn(calls=[agent.shell("touch asked.txt")], repeat="forever")]
    result = await agent.run(script, ask=Person("cancel"), policy=RULES)
    assert result.status == "denied"
    assert result.error is not None
    assert result.error.code == "permission_refused"
    assert file_names(workspace) == []


@for_agents(*JUDGED, every_day=MOST)
async def test_a_call_that_only_the_agents_own_parser_finds_is_not_made(
    agent: RealAgent, workspace: Path
) -> None:
    """The Gemini CLI accepts blanks before ``data:``. No standard does, and no other agent."""
    person = Person("allow_once")
    options = agent.options([Turn(calls=[agent.shell("touch asked.txt")]), Turn(text="done")])
    usual_env = options.get("env", {})
    url = usual_env[agent.record.probe.url_env].removesuffix(agent.record.url_path)
    async with changing_relay(url, lambda body: body.replace(b"data: ", b" data: ")) as relay:
        options["env"] = {
            **usual_env,
            agent.record.probe.url_env: relay + agent.record.url_path,
        }
        options["policy"] = RULES
        async with corral.session(agent.name, ask=person, **options) as session:
            result = await session.run("do it")
    assert file_names(workspace) == []
    assert person.questions == []
    assert result.error is not None
    assert result.error.code == "stream_broken"
    assert "cannot be judged: the stream has an unusual line" in result.error.message


@for_agents("codex-cli", "opencode-cli", "pi-cli", every_day=("codex-cli",))
async def test_shell_rules_are_enforced_without_a_person(agent: RealAgent, workspace: Path) -> None:
    rules = Policy(write="allow", shell_rules=("allow touch yes*",))
    script = [
        Turn(calls=[agent.shell("touch no.txt")]),
        Turn(calls=[agent.shell("touch yes.txt; touch no.txt")]),
        Turn(calls=[agent.shell("touch yes.txt")]),
        Turn(text="done"),
    ]
    result = await agent.run(script, policy=rules)
    assert file_names(workspace) == ["yes.txt"]
    assert len(result.denied) == 2
    with pytest.raises(PolicyNotEnforceable):
        await agent.run(script, policy=rules, meter=False)
