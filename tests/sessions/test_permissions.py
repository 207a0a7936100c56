"""Permission requests: answered by the policy, by a person, or denied."""

from __future__ import annotations

import asyncio

import pytest

from corral import Policy
from corral._sessions.permissions import Asker, PermissionAnswer, PermissionBroker
from corral.events import Decision, PermissionRequest
from corral.policy import Action

RUN = Action("run_shell_command", "execute", "make")


def request(number: int = 1) -> PermissionRequest:
    return PermissionRequest(str(number), call_id=f"call-{number}", title=f"question {number}")


def never(_request: PermissionRequest) -> Decision:
    raise AssertionError("no one was to be asked")


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        (Policy(shell="allow"), PermissionAnswer("allow_once", "policy", "shell=allow")),
        (Policy(shell="deny"), PermissionAnswer("deny", "policy", "shell=deny")),
        (
            Policy(shell="deny", shell_rules=("allow make",)),
            PermissionAnswer("allow_once", "policy", "shell_rules: allow make"),
        ),
        (
            Policy(shell="allow", deny_tools=("run_shell_command",)),
            PermissionAnswer("deny", "policy", "deny_tools: run_shell_command"),
        ),
    ],
)
def test_the_policy_answers_at_once_and_names_its_rule(
    policy: Policy, answer: PermissionAnswer
) -> None:
    assert PermissionBroker(policy, never).policy_answer(RUN) == answer


def test_a_policy_never_allows_more_than_once() -> None:
    answer = PermissionBroker(Policy.all()).policy_answer(RUN)
    assert answer is not None
    assert answer.decision == "allow_once"


def test_an_undecided_request_waits_for_a_person_or_is_denied() -> None:
    assert PermissionBroker(Policy(), never).policy_answer(RUN) is None
    assert PermissionBroker(Policy()).policy_answer(RUN) == PermissionAnswer(
        "deny", "policy", "shell=ask, and no one to ask"
    )


def test_the_permission_mode_answers_only_what_the_policy_does_not_decide() -> None:
    auto = PermissionBroker(Policy(network="deny"), never, mode="auto")
    deny = PermissionBroker(Policy(network="allow"), never, mode="deny")
    for broker, open_question, decided in (
        (auto, "allow_once", "deny"),
        (deny, "deny", "allow_once"),
    ):
        run, fetch = broker.policy_answer(RUN), broker.policy_answer(Action("web_fetch", "fetch"))
        assert run is not None
        assert fetch is not None
        assert (run.decision, fetch.decision) == (open_question, decided)


def test_a_tool_of_the_callers_own_follows_its_own_rule() -> None:
    broker = PermissionBroker(Policy.edits(), never)
    own = broker.policy_answer(Action("mcp_corral_add", "mcp", own=True))
    assert own is not None
    assert own.decision == "allow_once"
    assert broker.policy_answer(Action("mcp_other_add", "mcp")) is None


@pytest.mark.parametrize("decision", ["allow_once", "allow_session", "deny", "cancel"])
async def test_a_persons_answer_is_passed_on(decision: Decision) -> None:
    async def later(_request: PermissionRequest) -> Decision:
        return decision

    def policy_answer(_request: PermissionRequest) -> Decision:
        return decision

    askers: list[Asker] = [later, policy_answer]
    for ask in askers:
        assert await PermissionBroker(Policy(), ask).ask_person(request()) == PermissionAnswer(
            decision, "person", "asked"
        )


async def test_a_request_without_an_asker_is_denied() -> None:
    assert (await PermissionBroker(Policy()).ask_person(request())).decision == "deny"


async def test_a_question_without_an_answer_is_denied_after_its_timeout() -> None:
    async def ask(_request: PermissionRequest) -> Decision:
        await asyncio.Event().wait()
        return "allow_once"

    answer = await PermissionBroker(Policy(), ask, timeout=0.01).ask_person(request())
    assert answer == PermissionAnswer("deny", "timeout", "no answer in 0.01 s")


async def test_an_asker_that_fails_denies() -> None:
    def ask(_request: PermissionRequest) -> Decision:
        raise OSError("no terminal")

    answer = await PermissionBroker(Policy(), ask).ask_person(request())
    assert answer == PermissionAnswer("deny", "person", "the question failed: no terminal")


async def test_a_cancelled_question_stays_cancelled_and_the_next_one_is_asked() -> None:
    asked: list[str | None] = []
    first = asyncio.Event()

    async def ask(question: PermissionRequest) -> Decision:
        asked.append(question.title)
        if question.title == "question 1":
            first.set()
            await asyncio.Event().wait()
        return "allow_once"

    broker = PermissionBroker(Policy(), ask)
    one = asyncio.create_task(broker.ask_person(request(1)))
    await first.wait()
    two = asyncio.create_task(broker.ask_person(request(2)))
    await asyncio.to_thread(str)
    assert asked == ["question 1"]
    one.cancel()
    async with asyncio.timeout(60):
        assert (await two).decision == "allow_once"
    assert one.cancelled()
    assert asked == ["question 1", "question 2"]


async def test_the_timeout_of_a_question_starts_when_it_is_asked() -> None:
    async def ask(_request: PermissionRequest) -> Decision:
        await asyncio.sleep(0.5)
        return "allow_once"

    broker = PermissionBroker(Policy(), ask, timeout=1.5)
    answers = await asyncio.gather(*(broker.ask_person(request(n)) for n in range(4)))
    assert [answer.decision for answer in answers] == ["allow_once"] * 4
