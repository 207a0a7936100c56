"""The conformance kit against the real program of every agent, compared with the tables in
``docs/agents.md``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.installed_agents import installed, mark_of

from corral._agents import registry
from corral._testing.conformance.check import MARKS, NOT_RUN, Outcome, Row
from corral._testing.conformance.scenarios import SCENARIOS
from corral.run_kwargs import RunKwargs
from corral.testing import check_agent

pytestmark = pytest.mark.whole_program

PAGE = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()
MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text()
TIERS = tuple(dict.fromkeys(scenario.tier for scenario in SCENARIOS))
PROGRAMS = {
    agent.name: bool(agent.programs)
    for agent in registry.all_agents()
    if "person" not in agent.capabilities
}
"""Agent → whether it has a program to be installed."""
SPINE = {("claude-cli", "start"), ("codex-cli", "start"), ("codex-acp", "start")}
"""What ``make test`` plays of the agents with programs; the rest is deep."""
WIRES = tuple(re.findall(r"^WIRES := (.*)$", MAKEFILE, re.MULTILINE)[0].split())


def tables() -> dict[str, dict[str, tuple[Outcome | None, str]]]:
    """Agent → scenario → what the tables say of it: the outcome, and the reason of a skip."""
    part = PAGE.partition("<!-- table")[2].partition("<!-- end")[0]
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", part, re.MULTILINE))
    outcomes: dict[str, Outcome] = {mark: outcome for outcome, mark in MARKS.items()}
    found: dict[str, dict[str, tuple[Outcome | None, str]]] = {}
    names: list[str] = []
    for line in part.splitlines():
        if not line.startswith("| "):
            continue
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if first not in {scenario.name for scenario in SCENARIOS}:
            names = cells
            continue
        for name, cell in zip(names, cells, strict=True):
            mark, _, number = cell.partition(" ")
            reported = (None, "") if mark == NOT_RUN else (outcomes[mark], reasons.get(number, ""))
            found.setdefault(name, {})[first] = reported
    return found


UPDATES = tables()


def seen(row: Row) -> tuple[Outcome, str]:
    return row.outcome, row.seen if row.outcome == "skip" else ""


def cases() -> Iterator[object]:
    for name, has_program in PROGRAMS.items():
        for tier in TIERS:
            costs = pytest.mark.spine if (name, tier) in SPINE else pytest.mark.deep
            marks = [getattr(pytest.mark, mark_of(name)), costs] if has_program else []
            yield pytest.param(name, tier, marks=marks)
    for name in WIRES:
        yield pytest.param(name, "", marks=[])


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [pattern for agent in registry.all_agents() for pattern in agent.env_names]
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            monkeypatch.delenv(name)


def test_the_tables_have_every_agent_and_every_scenario_and_no_failure() -> None:
    assert sorted(UPDATES) == sorted([*PROGRAMS, *WIRES]), "run `make table`"
    for name, column in UPDATES.items():
        assert list(column) == [scenario.name for scenario in SCENARIOS], name
        assert "fail" not in {outcome for outcome, _ in column.values()}, name


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "tier"), [*cases()])
async def test_an_agent_does_what_the_tables_say(name: str, tier: str) -> None:
    options: RunKwargs = {"program": installed(name)} if PROGRAMS.get(name) else {}
    report = await check_agent(name, only=[tier] if tier else [], options=options, concurrency=1)
    assert not report.failed, report
    # The tables have no entry for an agent that was not available when they were made.
    reported = {key: UPDATES[name][key] for key in (row.scenario for row in report.rows)}
    if {outcome for outcome, _ in reported.values()} != {None}:
        assert {row.scenario: seen(row) for row in report.rows} == reported, "run `make table`"
