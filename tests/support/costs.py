"""What each test costs in CPU seconds: the measurement behind the mark ``deep``.

The cost of a test is the CPU time of its process and of the children that the process waited for,
from its setup to its teardown, with the commands that the fork server starts. Fixtures that
several tests share belong to none of them. ``make test`` has no test that costs over ``LIMIT`` but
those with the mark ``spine``. It prints the dearest ones, and fails if one without a mark needs
twice the limit: on a machine that did other work meanwhile, where a test costs more than it should,
that is only printed.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

LIMIT = 1.0
TOLERANCE = 2.0
"""Only a cost over the limit by this factor fails: a measurement is not exact."""
LISTED = 20
BUSY = 0.15
"""The share of the machine's CPU time that other work may have, so that the machine is quiet."""


_before: dict[int, float] = {}
"""Process that starts others for the tests, and is no child → what it had used at its start."""


def count_also(pid: int) -> None:
    _before[pid] = cpu_seconds_of(pid)


def cpu_seconds() -> float:
    """Of this process and of those of ``count_also``, and of their children that have ended."""
    times = os.times()
    here = times.user + times.system + times.children_user + times.children_system
    return here + sum(cpu_seconds_of(pid) - before for pid, before in _before.items())


def cpu_seconds_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has ended
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def deep_but(cases: Iterable[str], *kept: str) -> list[object]:
    """Parameters of a test: those that are not ``kept`` are deep."""
    names = [*cases]
    assert {*kept} <= {*names}, {*kept} - {*names}
    return [n if n in kept else pytest.param(n, marks=pytest.mark.deep) for n in names]


def machine_seconds() -> float:
    """The CPU seconds that all cores of this machine have worked."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)  # plugins are kept in a set
class Costs:
    """Measures the tests of one process, and collects those of its workers."""

    of_test: dict[str, float] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    """Tests that may cost more."""
    in_workers: float = 0.0
    _shared: float = 0.0
    _machine_began: float = field(default_factory=machine_seconds)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        began, shared = cpu_seconds(), self._shared
        try:
            return (yield)
        finally:
            self._shared = shared + cpu_seconds() - began

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began, self._shared = cpu_seconds(), 0.0
        try:
            return (yield)
        finally:
            self.of_test[item.nodeid] = cpu_seconds() - began - self._shared
            if any(item.get_closest_marker(mark) for mark in ("deep", "spine")):
                self.excused.add(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the costs to the process that started this one, or judge them."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            dear = {test: cost for test, cost in self.of_test.items() if cost > LIMIT / 2}
            output["costs"] = [dear, [*self.excused & dear.keys()], cpu_seconds()]
        elif self._too_dear() and self._is_quiet():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        costs, excused, seconds = getattr(node, "workeroutput", {}).get("costs", ({}, [], 0.0))
        self.of_test |= costs
        self.excused |= set(excused)
        self.in_workers += seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        dearest = sorted(self.of_test.items(), key=lambda item: -item[1])[:LISTED]
        if len(self.of_test) <= LISTED or dearest[0][1] < LIMIT:
            return
        terminalreporter.section("CPU seconds of the dearest tests")
        for test, cost in dearest:
            terminalreporter.write_line(f"{cost:6.1f}  {test}")
        busy = "" if self._is_quiet() else " (the machine was busy)"
        for test in self._too_dear():
            terminalreporter.write_line(
                f"{test} used {self.of_test[test]:.1f} CPU seconds, over {LIMIT:g}: make it"
                f" cheaper, or mark it `deep`{busy}",
                red=True,
            )

    def _too_dear(self) -> list[str]:
        costs = self.of_test.items()
        return [t for t, cost in costs if cost > TOLERANCE * LIMIT and t not in self.excused]

    def _is_quiet(self) -> bool:
        """Whether other programs left this machine to the tests."""
        worked = machine_seconds() - self._machine_began
        return worked - self.in_workers - cpu_seconds() < BUSY * worked
