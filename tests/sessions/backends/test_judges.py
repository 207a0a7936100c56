"""Decisions about the tool calls in a model's response: policy, person, events."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from corral import Policy
from corral._agents.spec import WireTools
from corral._models.tool_gate import WireCall, wire_call
from corral._protocol.ndjson import RawEvent
from corral._sessions.backends.judges import WireJudge
from corral._sessions.permissions import Asker, PermissionBroker
from corral._system.path_guard import PathGuard
from corral.errors import CorralError, PermissionRefused, StreamBroken
from corral.events import Decision, PermissionDecision, PermissionRequest, ToolKind, ToolResult
from corral.values import Json, JsonObject

KINDS: dict[str, ToolKind] = {"run": "execute", "write": "edit", "read": "read", "think": "think"}


class Turn:
    """The turn of an agent, as the judge knows it."""

    def __init__(self) -> None:
        self.items: list[RawEvent] = []
        self.errors: list[CorralError] = []

    def emit(self, item: RawEvent) -> None:
        self.items.append(item)

    def fail(self, error: CorralError) -> None:
        self.errors.append(error)


def judge_of(
    turn: Turn,
    policy: Policy,
    ask: Asker | None = None,
    guard: PathGuard | None = None,
    *,
    denies_network: bool = False,
) -> WireJudge:
    tools = WireTools(kind_of=lambda name: KINDS.get(name, "other"), own_prefix="own_")
    broker = PermissionBroker(policy, ask, guard=guard)
    return WireJudge(tools, broker, set(), turn, denies_network=denies_network)


def call(name: str, arguments: JsonObject | None = None, *, valid: bool = True) -> WireCall:
    return wire_call("c", name, (arguments or {}) if valid else None)


def run(command: str) -> WireCall:
    return call("run", {"command": command})


def answers(*given: Decision) -> tuple[Asker, list[str | None]]:
    left, titles = list(given), list[str | None]()

    def ask(request: PermissionRequest) -> Decision:
        titles.append(request.title)
        return left.pop(0)

    return ask, titles


async def decide(judge: WireJudge, calls: Sequence[WireCall]) -> list[str] | None:
    async with asyncio.timeout(30):
        return await judge.decide(calls)


async def test_what_the_policy_allows_is_made() -> None:
    turn = Turn()
    assert await decide(judge_of(turn, Policy(shell="allow")), [run("ls"), call("think")]) is None
    assert [type(item) for item in turn.items] == [PermissionRequest, PermissionDecision] * 2


async def test_a_refused_call_is_reported_with_its_rule() -> None:
    turn = Turn()
    judge = judge_of(turn, Policy(shell="allow", shell_rules=("deny rm *",)))
    results = await decide(judge, [run("rm -r x")])
    assert results is not None
    assert results[0].startswith("Denied by policy: shell_rules: deny rm *.")
    [ended] = [item for item in turn.items if isinstance(item, ToolResult)]
    assert (ended.status, ended.error) == ("denied", "shell_rules: deny rm *")
    [decision] = [item for item in turn.items if isinstance(item, PermissionDecision)]
    assert decision.call_id == ended.call_id


async def test_no_person_is_asked_about_calls_beside_one_that_the_policy_refuses() -> None:
    ask, titles = answers()
    judge = judge_of(Turn(), Policy(shell_rules=("deny rm *",)), ask)
    results = await decide(judge, [run("touch x"), run("rm x")])
    assert results is not None
    assert results[0].startswith("Not made, because another call of the same message (run)")
    assert results[1].startswith("Denied by policy")
    assert titles == []


async def test_after_the_first_refusal_of_a_person_no_more_is_asked() -> None:
    ask, titles = answers("allow_once", "deny")
    results = await decide(judge_of(Turn(), Policy(), ask), [run("a"), run("b"), run("c")])
    assert results is not None
    assert ["Denied" in result for result in results] == [False, True, False]
    assert titles == ["run a", "run b"]


async def test_an_answer_for_the_session_is_remembered() -> None:
    ask, titles = answers("allow_session")
    judge = judge_of(Turn(), Policy(), ask)
    assert await decide(judge, [run("a")]) is None
    assert await decide(judge, [run("a")]) is None
    assert titles == ["run a"]


async def test_cancel_ends_the_run() -> None:
    ask, _ = answers("cancel")
    turn = Turn()
    assert await decide(judge_of(turn, Policy(), ask), [run("a")]) is not None
    [error] = turn.errors
    assert isinstance(error, PermissionRefused)


async def test_paths_are_judged(tmp_path: object) -> None:
    guard = PathGuard(str(tmp_path))
    judge = judge_of(Turn(), Policy(write="allow"), guard=guard)
    assert await decide(judge, [call("write", {"path": "inside.txt"})]) is None
    outside = await decide(judge, [call("write", {"path": "../outside.txt"})])
    assert outside is not None
    assert "outside" in outside[0]


async def test_arguments_that_are_not_an_object_are_refused_without_asking() -> None:
    ask, titles = answers()
    results = await decide(judge_of(Turn(), Policy.all(), ask), [call("run", valid=False)])
    assert results is not None
    assert "not a JSON object" in results[0]
    assert titles == []


@pytest.mark.parametrize("command", [7, ["touch", "x"], {"x": 1}, True])
async def test_a_command_that_is_not_a_text_is_refused_as_no_rule_sees_it(command: Json) -> None:
    policy = Policy(shell="allow", shell_rules=("deny touch *",))
    results = await decide(judge_of(Turn(), policy), [call("run", {"command": command})])
    assert results is not None
    assert "its command is not a text" in results[0]
    # A field of another tool with this name is not a command.
    assert await decide(judge_of(Turn(), policy), [call("think", {"command": command})]) is None


async def test_a_name_with_unusual_characters_is_refused_whatever_the_policy_says() -> None:
    results = await decide(judge_of(Turn(), Policy.all()), [call(" run ", {"command": "ls"})])
    assert results is not None
    assert "unusual characters" in results[0]


def test_a_response_that_cannot_be_judged_ends_the_run() -> None:
    turn = Turn()
    judge_of(turn, Policy()).fail_unreadable("a part is of an unknown kind: 'x'")
    [error] = turn.errors
    assert isinstance(error, StreamBroken)
    assert error.message.endswith("cannot be judged: a part is of an unknown kind: 'x'")
    assert not error.retryable


@pytest.mark.parametrize("denies_network", [True, False])
async def test_tools_of_the_vendor_end_the_run_only_if_the_network_is_denied(
    denies_network: bool,
) -> None:
    turn = Turn()
    judge = judge_of(turn, Policy(), denies_network=denies_network)
    refusal = judge.refuse_tools(["web_search", "web_search"])
    assert (refusal is not None) == bool(turn.errors) == denies_network
    assert judge.refuse_tools([]) is None
    if refusal is not None:
        assert refusal.endswith("would run: web_search")


async def test_a_question_is_withdrawn_if_the_agent_goes_away() -> None:
    asked = asyncio.Event()

    async def ask(request: PermissionRequest) -> Decision:
        asked.set()
        await asyncio.sleep(600)
        return "allow_once"

    judge = judge_of(Turn(), Policy(), ask)
    deciding = asyncio.ensure_future(judge.decide([run("a")]))
    await asked.wait()
    assert judge.questions.is_asking
    deciding.cancel()
    await asyncio.wait([deciding])
    assert not judge.questions.is_asking
    await judge.questions.close()


async def test_a_judge_does_not_keep_its_turn_alive() -> None:
    turn = Turn()
    judge = judge_of(turn, Policy.all())
    del turn
    gc.collect()
    assert await decide(judge, [run("a")]) is None
