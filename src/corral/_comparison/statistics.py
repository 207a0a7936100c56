"""Pass rates and their differences, with 95 % intervals clustered by task. Pure functions.

Attempts at one task are alike: an agent that solves a task once often solves it again. Counting
them as independent would make intervals too narrow. So a task is the unit, and its attempts are
summed up first.

Notation: agent *a*, tasks *t* = 1 … T that have at least one verdict, ``m[t]`` the share of passed
attempts at task *t*, *n* the number of all verdicts.

The rate is the mean over tasks, ``p = sum(m) / T``: each task counts the same, however many of its
attempts have a verdict. Its variance, clustered by task, is

    v = sum((m[t] - p)²) / (T (T - 1))

The interval is Wilson's score interval for ``p`` with the effective number of attempts

    k = p (1 - p) / v,  at least T and at most n

With ``p`` of 0 or 1, ``v`` is 0 and says nothing: then ``k = T``. With one task there is no
variance between tasks: ``k = n``, and the interval is about this task only.

    center = (p + z² / 2k) / (1 + z² / k)
    half   = z sqrt(p (1 - p) / k + z² / 4k²) / (1 + z² / k)

The difference of two agents uses only the tasks at which both have a verdict (pairs):
``d = p1 - p2``. Its interval is Newcombe's for paired proportions (Statistics in Medicine 17, 1998,
method 10), from the two intervals ``(l1, u1)`` and ``(l2, u2)`` of the rates over these tasks:

    lower = d - sqrt((p1 - l1)² - 2 r (p1 - l1) (u2 - p2) + (u2 - p2)²)
    upper = d + sqrt((u1 - p1)² - 2 r (u1 - p1) (p2 - l2) + (p2 - l2)²)

where ``r`` is the correlation of ``m1[t]`` and ``m2[t]`` over the tasks; 0 if one does not vary.
For many tasks this is ``d ± z sqrt(v1 + v2 - 2 r sqrt(v1 v2))``, the paired clustered standard
error. For few tasks it stays within [-1, 1], and is not of width zero when all attempts passed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import TypeAlias

import msgspec

from corral._core.intervals import wilson

MANY_TASKS = 10
"""With fewer, intervals are optimistic: too narrow."""

Verdicts: TypeAlias = Mapping[str, Sequence[bool]]
"""Task -> the verdicts of one agent's attempts at it. Missing attempts are left out."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A pass rate with its 95 % interval. All are None if there is no verdict."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int = 0
    """Tasks with a verdict."""
    attempts: int = 0
    """Attempts with a verdict."""
    passed: int = 0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How much more often one agent passes than another, at the tasks that both have tried."""

    first: str
    second: str
    value: float | None = None
    """The rate of ``first`` minus that of ``second``; None if they share no task."""
    low: float | None = None
    high: float | None = None
    tasks: int = 0
    """Tasks at which both have a verdict."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    @property
    def is_optimistic(self) -> bool:
        """Whether the interval is of so few tasks that it is too narrow."""
        return self.low is not None and self.tasks < MANY_TASKS


def pass_rate(verdicts: Verdicts) -> Rate:
    """The rate of one agent. The module's docstring has the formula."""
    means = [fmean(each) for each in verdicts.values() if each]
    if not means:
        return Rate()
    attempts = sum(len(each) for each in verdicts.values())
    value = fmean(means)
    low, high = wilson(value, _effective_count(value, means, attempts))
    passed = sum(sum(each) for each in verdicts.values())
    return Rate(value=value, low=low, high=high, tasks=len(means), attempts=attempts, passed=passed)


def difference(first: str, second: str, one: Verdicts, other: Verdicts) -> Difference:
    """The paired difference of two agents. The module's docstring has the formula."""
    shared = [task for task, each in one.items() if each and other.get(task)]
    if not shared:
        return Difference(first=first, second=second)
    left = pass_rate({task: one[task] for task in shared})
    right = pass_rate({task: other[task] for task in shared})
    try:
        means = ([fmean(each[task]) for task in shared] for each in (one, other))
        correlation = statistics.correlation(*means)
    except statistics.StatisticsError:  # one side does not vary
        correlation = 0.0
    p1, l1, u1 = _known(left.value), _known(left.low), _known(left.high)
    p2, l2, u2 = _known(right.value), _known(right.low), _known(right.high)
    below = _combined(p1 - l1, u2 - p2, correlation)
    above = _combined(u1 - p1, p2 - l2, correlation)
    low, high = max(-1.0, p1 - p2 - below), min(1.0, p1 - p2 + above)
    return Difference(
        first=first,
        second=second,
        value=_known(left.value) - _known(right.value),
        low=low,
        high=high,
        tasks=len(shared),
    )


def differences(by_agent: Mapping[str, Verdicts]) -> list[Difference]:
    """Of every two agents, in their order."""
    return [
        difference(first, second, by_agent[first], by_agent[second])
        for first, second in combinations(by_agent, 2)
    ]


def _effective_count(value: float, means: Sequence[float], attempts: int) -> float:
    tasks = len(means)
    if tasks == 1:
        return attempts
    if value in (0.0, 1.0):
        return tasks
    variance = sum((mean - value) ** 2 for mean in means) / (tasks * (tasks - 1))
    if variance == 0:
        return attempts
    return min(max(value * (1 - value) / variance, tasks), attempts)


def _combined(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("there is no verdict")
    return value
