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
REAL_AGENTS = Path(__file__).parents[2] / "real_agents"
MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text()
TIERS = tuple(dict.fromkeys(scenario.tier for scenario in SCENARIOS))
PROGRAMS = {
    agent.name: bool(agent.programs)
    for agent in registry.all_agents()
    if "person" not in agent.capabilities
}
"""Agent → whether it has a program to be installed."""
COVERED = {
    "opencode": ("start", "text", "errors", "cancel", "resume", "usage", "concurrency"),
    "gemini_cli": (
        *("start", "text", "errors", "cancel", "resume", "usage", "schema", "mcp", "concurrency"),
    ),
    "claude": ("start", "files", "errors", "cancel", "resume", "usage", "schema", "mcp"),
}
"""Mark → tiers of a program that takes a second of a processor or more to start. Its other tiers,
and ``SAME_EVERY_DAY``, need the same of it. Codex, which starts fast, and the built-in agent play
all scenarios."""
SAME_EVERY_DAY = {
    "start": ("test_a_conversation_continues_in_its_session_and_after_resuming",),
    "text": ("test_a_long_prompt_and_a_long_answer_arrive_complete",),
    "files": ("test_the_events_of_a_run_report_its_tools_files_and_model",),
    "errors": (
        "test_an_api_error_has_its_own_class",
        "test_errors_of_the_service_are_errors_and_the_start_names_the_tools",
    ),
    "cancel": ("test_cancelling_a_prompt_ends_its_command_and_the_session_goes_on",),
    "resume": ("test_a_conversation_continues_in_its_session_and_after_resuming",),
    "usage": ("test_a_conversation_continues_in_its_session_and_after_resuming",),
    "schema": (
        "test_an_answer_that_does_not_fit_is_repaired_in_the_same_session",
        "test_the_agents_own_tool_submits_the_value",
    ),
    "mcp": (
        "test_hooks_run_between_the_agent_and_the_function",
        "test_python_functions_are_tools_of_the_agent",
    ),
    "concurrency": ("test_runs_at_once_share_nothing_and_leave_nothing_behind",),
}
"""Tier → tests in ``real_agents/`` that run what it plays with the programs of ``COVERED``."""
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
    """Where two agents drive the same program, each plays every second tier, and all of them with
    make test-all: a start of some programs takes seconds of a processor."""
    transports: dict[str, list[str]] = {}
    for name in PROGRAMS:
        transports.setdefault(mark_of(name), []).append(name)
    for name, has_program in PROGRAMS.items():
        marks = [getattr(pytest.mark, mark_of(name))] if has_program else []
        same = transports[mark_of(name)]
        for number, tier in enumerate(TIERS):
            left_out = number % len(same) != same.index(name)
            # The attack kit tries all permissions, and more.
            left_out = left_out or tier in COVERED.get(mark_of(name), ())
            is_slow = has_program and (left_out or tier == "permissions")
            yield pytest.param(name, tier, marks=[*marks, *([pytest.mark.deep] if is_slow else [])])
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


def test_a_tier_that_is_covered_has_a_test_with_the_same_programs() -> None:
    sources = [path.read_text() for path in REAL_AGENTS.glob("test_*.py")]
    named = {test for tiers in COVERED.values() for tier in tiers for test in SAME_EVERY_DAY[tier]}
    assert {test for test in named if not any(f"def {test}(" in text for text in sources)} == set()


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
