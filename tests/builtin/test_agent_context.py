"""Long conversations: the warning, dropped messages, and repeated calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builtin_agent import BuiltinAgent, warning_codes

from corral import errors
from corral._builtin.history import shrink_messages
from corral._builtin.loop import REPETITION_ADVICE
from corral.messages import Message, ToolCall, ToolResult
from corral.result import result_from_events
from corral.testing import Call, Request, Turn, call, fail, say

pytest_plugins = ("support.builtin_agent_fixture",)

TINY = '[models."gemini:gemini-2.5-flash"]\nwindow = 1000\n'


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "models.toml"
    path.write_text(TINY)
    monkeypatch.setenv("CORRAL_MODELS", str(path))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("used", "warned"), [(790, []), (810, ["context_nearly_full"])])
async def test_a_nearly_full_context_window_is_a_warning(
    ours: BuiltinAgent, used: int, warned: list[str]
) -> None:
    turn = Turn(text="ok", usage={"input": used - 10, "output": 10})
    events = await ours.events([turn])
    assert warning_codes(events) == warned
    assert result_from_events(events).ok


@pytest.mark.usefixtures("tiny")
async def test_a_warning_is_emitted_once(ours: BuiltinAgent) -> None:
    usage = {"input": 900, "output": 10}
    script = [Turn(calls=[Call("list_dir")], usage=usage), Turn(text="ok", usage=usage)]
    assert warning_codes(await ours.events(script)) == ["context_nearly_full"]


TOO_LONG = "The input token count exceeds the maximum number of tokens allowed"


def is_paired(request: Request) -> bool:
    """Whether each call is followed at once by its results."""
    waiting = 0
    for message in request.history:
        if waiting and len(message.results) != waiting:
            return False
        if message.results and not waiting:
            return False
        waiting = len(message.calls)
    return not waiting


async def test_a_history_that_is_too_long_loses_complete_pairs(ours: BuiltinAgent) -> None:
    rounds = [call("glob", pattern=f"*.{n}") for n in range(6)]
    script = [*rounds, fail(413, TOO_LONG), say("ok")]
    events = await ours.events(script, "the task")
    assert result_from_events(events).ok
    assert warning_codes(events) == ["context_shrunk"]
    before, after = ours.requests[-2], ours.requests[-1]
    assert len(before.tool_calls) == 6
    assert [dict(made.args) for made in after.tool_calls] == [
        {"pattern": f"*.{n}"} for n in (3, 4, 5)
    ]
    assert after.history[0].texts == ("the task",)
    assert is_paired(after)


async def test_the_current_prompt_is_never_dropped(ours: BuiltinAgent) -> None:
    script = [say("one"), say("two"), call("list_dir"), fail(413, TOO_LONG, times=2), say("ok")]
    async with ours.session(script) as session:
        for prompt in ("first", "second"):
            await session.run(prompt)
        result = await session.run("third")
    assert result.ok
    texts = ours.requests[-1].texts
    assert texts[0] == "first"
    assert "third" in texts
    assert "second" not in texts
    assert is_paired(ours.requests[-1])


async def test_a_history_that_cannot_shrink_is_an_error_with_a_hint(ours: BuiltinAgent) -> None:
    events = await ours.events([fail(413, TOO_LONG, times="forever")])
    result = result_from_events(events)
    assert result.error is not None
    assert (result.status, result.error.code) == ("error", "context_length")
    assert len(ours.requests) == 1
    assert warning_codes(events) == []


async def test_shrinking_comes_to_an_end(ours: BuiltinAgent) -> None:
    rounds = [call("glob", pattern=f"*.{n}") for n in range(4)]
    result = await ours.run([*rounds, fail(413, TOO_LONG, times="forever")], "the task")
    assert result.error is not None
    assert result.error.code == "context_length"
    assert ours.requests[-1].texts == ["the task"]


def _round(n: int) -> list[Message]:
    return [
        Message.assistant(ToolCall(f"{n}", "tool")),
        Message.tool(ToolResult(f"{n}", "so")),
    ]


@pytest.mark.parametrize("rounds", range(12))
def test_shrinking_a_history_of_any_length_splits_no_pair(rounds: int) -> None:
    first, prompt = Message.user("first"), Message.user("now")
    messages = [first, *[m for n in range(rounds) for m in _round(n)], prompt, *_round(99)]
    for _ in range(10):
        stored = shrink_messages(messages, prompt)
        assert (stored[0], prompt in stored) == (first, True)
        calls = [c.id for m in stored for c in m.tool_calls]
        results = [p.call_id for m in stored for p in m.content if isinstance(p, ToolResult)]
        assert calls == results
        if len(stored) == len(messages):
            break
        messages = stored
    assert messages == [first, prompt]


def circle(period: int, count: int) -> list[Turn]:
    return [call("glob", pattern=f"*.{n % period}") for n in range(count)]


@pytest.mark.parametrize("period", [1, 2, 3])
async def test_repeated_calls_are_reported_to_the_model_and_the_caller(
    ours: BuiltinAgent, period: int
) -> None:
    events = await ours.events([*circle(period, 10), say("ok")])
    assert warning_codes(events) == ["repetition"]
    assert ours.requests[-1].last_text == REPETITION_ADVICE
    assert REPETITION_ADVICE not in ours.requests[-2].texts


@pytest.mark.parametrize(("period", "count"), [(1, 9), (2, 9), (3, 9), (4, 12)])
async def test_few_repetitions_are_not_reported(
    ours: BuiltinAgent, period: int, count: int
) -> None:
    assert warning_codes(await ours.events([*circle(period, count), say("ok")])) == []


@pytest.mark.parametrize(("count", "times"), [(19, 1), (20, 2)])
async def test_after_a_report_repetitions_are_counted_again(
    ours: BuiltinAgent, count: int, times: int
) -> None:
    script = [*circle(1, count), say("ok")]
    events = await ours.events(script, max_repeated_calls=21)
    assert warning_codes(events) == ["repetition"] * times


@pytest.mark.parametrize("period", [1, 2, 3])
async def test_calls_that_never_change_end_the_turn(ours: BuiltinAgent, period: int) -> None:
    result = await ours.run([*circle(period, 40), say("never")])
    assert (result.status, len(ours.requests)) == ("max_turns", 20)
    with pytest.raises(errors.RepeatedCalls, match="20 times in a row") as caught:
        result.raise_for_status()
    assert "max_repeated_calls" in (caught.value.hint or "")
    assert result.resume_token is not None


async def test_the_number_of_repeated_calls_is_an_option(ours: BuiltinAgent) -> None:
    result = await ours.run([*circle(1, 10), say("never")], max_repeated_calls=3)
    assert (result.status, len(ours.requests)) == ("max_turns", 3)


async def test_the_same_call_with_another_result_is_no_repetition(ours: BuiltinAgent) -> None:
    poll = call("shell", command="echo x >> log; wc -l < log")
    result = await ours.run([*[poll] * 30, say("ok")], policy="all")
    assert result.ok


async def test_there_is_a_limit_on_model_calls_by_default(ours: BuiltinAgent) -> None:
    many = [call("glob", pattern=f"{n}*") for n in range(120)]
    result = await ours.run([*many, say("never")])
    assert (result.status, len(ours.requests)) == ("max_turns", 100)
    assert result.error is not None
    assert "max_turns=100" in result.error.message


async def test_a_turn_ends_at_its_budget(ours: BuiltinAgent) -> None:
    """Each answer costs 0.03 + 0.25 cents: the second one would exceed the budget."""
    cheap = {"input": 1000, "output": 1000}
    many = [Turn(calls=[Call("glob", {"pattern": f"{n}*"})], usage=cheap) for n in range(10)]
    result = await ours.run([*many, say("never")], max_cost=0.005)
    assert (result.status, len(ours.requests)) == ("max_budget", 1)
    assert result.cost.usd == pytest.approx(0.0028)
    with pytest.raises(errors.BudgetExceeded, match="max_cost"):
        result.raise_for_status()


async def test_a_budget_needs_a_price(ours: BuiltinAgent) -> None:
    with pytest.raises(errors.ConfigError, match="price of gemini:unheard-of"):
        await ours.run([say("never")], model="gemini:unheard-of", max_cost=1)
    assert ours.requests == []


async def test_calls_of_one_answer_count_each(ours: BuiltinAgent) -> None:
    many = Turn(calls=[Call("list_dir")] * 10)
    assert warning_codes(await ours.events([many, say("ok")])) == ["repetition"]


async def test_another_prompt_may_repeat_the_same_calls(ours: BuiltinAgent) -> None:
    script = [turn for _ in range(12) for turn in (call("list_dir"), say("ok"))]
    async with ours.session(script) as session:
        results = [await session.run("again") for _ in range(12)]
    assert all(result.ok for result in results)
    assert REPETITION_ADVICE not in ours.requests[-1].texts
