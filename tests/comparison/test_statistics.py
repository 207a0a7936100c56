"""Pass rates and paired differences: published values, a bootstrap, and direct computation."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._comparison.result_lines import report_lines
from corral._comparison.statistics import Verdicts, difference, differences, pass_rate
from corral._comparison.summary import ComparisonSummary

TASKS = 120


def scripted(seed: int, tasks: int = TASKS, repeat: int = 3) -> tuple[Verdicts, Verdicts]:
    """Two agents at the same tasks. Easy tasks are easy for both."""
    chance = random.Random(seed)
    one: dict[str, list[bool]] = {}
    other: dict[str, list[bool]] = {}
    for number in range(tasks):
        ease = chance.betavariate(0.8, 0.8)
        one[str(number)] = [chance.random() < min(1, ease + 0.1) for _ in range(repeat)]
        other[str(number)] = [chance.random() < ease for _ in range(repeat)]
    return one, other


def bootstrap(one: Verdicts, other: Verdicts, seed: int) -> tuple[float, float]:
    """The interval of the difference when whole tasks are drawn again, 2,000 times."""
    chance = random.Random(seed)
    gaps = [fmean(one[task]) - fmean(other[task]) for task in one]
    means = sorted(fmean(chance.choices(gaps, k=len(gaps))) for _ in range(2_000))
    return means[49], means[1949]


def test_the_paired_interval_agrees_with_a_bootstrap_over_tasks() -> None:
    one, other = scripted(7)
    found = difference("a", "b", one, other)
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == pytest.approx(bootstrap(one, other, 11), abs=0.02)


def test_for_many_tasks_the_interval_is_that_of_the_paired_clustered_standard_error() -> None:
    one, other = scripted(3, tasks=2_000)
    found = difference("a", "b", one, other)
    gaps = [fmean(one[task]) - fmean(other[task]) for task in one]
    half = 1.959964 * stdev(gaps) / math.sqrt(len(gaps))
    assert found.value == pytest.approx(fmean(gaps))
    assert found.low == pytest.approx(fmean(gaps) - half, abs=0.002)
    assert found.high == pytest.approx(fmean(gaps) + half, abs=0.002)


def test_attempts_at_one_task_do_not_count_as_independent() -> None:
    once = {str(n): [n % 2 == 0] for n in range(10)}
    ten_times = {task: each * 10 for task, each in once.items()}
    one, ten = pass_rate(once), pass_rate(ten_times)
    assert (one.low, one.high) == pytest.approx((ten.low, ten.high), abs=1e-9)
    assert ten.attempts == 100


def test_pairing_makes_the_interval_of_agents_that_fail_the_same_tasks_narrow() -> None:
    one, _ = scripted(5)
    shuffled = dict(zip(one, sorted(one.values(), key=str), strict=True))
    paired, unpaired = difference("a", "b", one, one), difference("a", "b", one, shuffled)
    assert paired.value == unpaired.value == 0
    assert paired.high is not None
    assert unpaired.high is not None
    assert paired.high < unpaired.high / 2


def test_only_tasks_with_a_verdict_for_both_are_compared() -> None:
    one: Verdicts = {"x": [True], "y": [True], "z": []}
    other: Verdicts = {"y": [False], "z": [True]}
    found = difference("a", "b", one, other)
    assert (found.tasks, found.value) == (1, 1.0)
    nothing = difference("a", "b", {"x": [True]}, {"y": [True]})
    assert (nothing.value, nothing.low, nothing.tasks, nothing.is_clear) == (None, None, 0, False)
    assert pass_rate({}).value is None


@pytest.mark.parametrize(("tasks", "is_said"), [(9, True), (10, False)])
def test_a_difference_of_few_tasks_is_called_optimistic(tasks: int, is_said: bool) -> None:
    numbers = [str(number) for number in range(tasks)]
    rows = {"a": dict.fromkeys(numbers, [True] * 5), "b": dict.fromkeys(numbers, [False] * 5)}
    found = [*differences(rows)]
    summary = ComparisonSummary(
        id="c", title="", created=0, cwd="", repeat=5, total=0, done=0, agents=(), tasks=(),
        differences=tuple(found),
    )  # fmt: skip
    (line,) = [line for line in report_lines(summary) if line.startswith("a − b")]
    assert line.endswith(" * (of 9 tasks only: optimistic)" if is_said else " *")


def test_every_two_agents_are_compared_once() -> None:
    found = differences({name: {"t": [True]} for name in "abc"})
    assert [(each.first, each.second) for each in found] == [("a", "b"), ("a", "c"), ("b", "c")]


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.tuples(
            st.lists(st.booleans(), min_size=1, max_size=4),
            st.lists(st.booleans(), min_size=1, max_size=4),
        ),
        min_size=1,
    )
)
def test_intervals_contain_their_value_and_turn_around_with_the_agents(
    found: dict[str, tuple[list[bool], list[bool]]],
) -> None:
    one = {task: left for task, (left, _) in found.items()}
    other = {task: right for task, (_, right) in found.items()}
    rate = pass_rate(one)
    assert rate.value is not None
    assert rate.low is not None
    assert rate.high is not None
    assert 0 <= rate.low <= rate.value <= rate.high <= 1
    there, back = difference("a", "b", one, other), difference("b", "a", other, one)
    assert there.low is not None
    assert there.high is not None
    assert there.value is not None
    assert -1 <= there.low <= there.value <= there.high <= 1
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
