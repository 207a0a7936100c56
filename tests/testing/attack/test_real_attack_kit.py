"""Every agent against the attack kit, with its real program: what its policy report calls enforced
holds, and what it allows works."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.installed_agents import ON_DEMAND, installed, mark_of

from corral._agents import registry
from corral._agents.report import RACES, PolicyRow, compile_for
from corral._testing.attack import POLICIES, SANDBOX_POLICIES
from corral._testing.attack.plan import ATTEMPTS, CAPABILITY
from corral._testing.attack.report import MARKS
from corral.options import RunOptions
from corral.policy import SANDBOX_CELLS
from corral.run_kwargs import RunKwargs
from corral.testing import attack_agent

pytestmark = pytest.mark.whole_program

DOCS = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
AGENTS = {agent.name: agent for agent in registry.all_agents() if agent.probe is not None}
SAMPLE = 4
"""Attempts of each class and cell; a test below makes all of them."""
SMALLER_SAMPLES = {"opencode-cli": 1}
"""A start of this agent takes 6 seconds of CPU time."""
GROUPS = tuple(dict.fromkeys(attempt.group for attempt in ATTEMPTS))
"""Without the ACP file methods, which need no real program: tests/testing/attack/test_attack.py."""
SAMPLED = ("default", "edits", "rules", "all", "asked", "files")
"""The policies of which a sample of the attempts is made."""
SPINE = {("claude-cli", "rules"), ("codex-cli", "all")}
"""What ``make test`` attacks of the agents with programs; the rest is deep."""


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [pattern for agent in registry.all_agents() for pattern in agent.env_names]
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            monkeypatch.delenv(name)


def cases(policies: tuple[str, ...], *, sampled: bool) -> Iterator[object]:
    for name, agent in AGENTS.items():
        for policy in policies:
            if not POLICIES[policy].applies_to(agent):
                continue
            marks = [getattr(pytest.mark, mark_of(name))] if agent.programs else []
            if sampled and (name, policy) in SPINE:
                marks.append(pytest.mark.spine)
            elif agent.programs or not sampled:
                marks.append(pytest.mark.deep)
            yield pytest.param(name, policy, marks=marks)


def table() -> dict[tuple[str, str, str], str]:
    """Policy, cell and agent → its mark in the docs."""
    part = DOCS.partition("<!-- attack")[2].partition("<!-- end")[0]
    found: dict[tuple[str, str, str], str] = {}
    policy, names = "", list[str]()
    for line in part.splitlines():
        if not line.startswith("| "):
            continue
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if first in POLICIES:
            policy, names = first, cells
            continue
        found.update({(policy, first, n): mark for n, mark in zip(names, cells, strict=True)})
    return found


TABLE = table()


def test_the_docs_have_every_agent_and_no_broken_cell() -> None:
    columns = {(policy, name) for policy, _, name in TABLE}
    applying = {(p, n) for p, s in POLICIES.items() for n, a in AGENTS.items() if s.applies_to(a)}
    assert columns == applying, "run `make table`"
    assert {
        mark for mark in TABLE.values() if mark in (MARKS["broken"], MARKS["unproven"])
    } == set()


def test_no_cell_of_the_table_of_the_sandbox_is_open() -> None:
    """Every agent was attacked in the sandbox; each cell was seen to hold, or is allowed."""
    part = DOCS.partition("<!-- sandbox")[2].partition("<!-- end")[0]
    lines = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert {row[0] for row in rows} >= {"offline", "offline-reads", *SANDBOX_CELLS}
    every_day = {name for name in AGENTS if mark_of(name) not in ON_DEMAND}
    assert {name for row in rows if row[0] == "offline" for name in row} >= every_day
    usual = {MARKS["held"], MARKS["allowed"], MARKS["no tool"], ""}
    marks = {cell for row in rows if row[0] not in SANDBOX_POLICIES for cell in row[1:]}
    assert marks <= usual, "run `make table`"


def reported(name: str, policy: str) -> dict[str, PolicyRow]:
    """What the agent's policy report says, as a session under this setting sees it."""
    agent, setting = AGENTS[name], POLICIES[policy]
    assert agent.probe is not None
    run = replace(RunOptions.build(name, {"model": agent.probe.model}), interactive=setting.person)
    run = replace(run, policy=setting.policy)
    return {row.capability: row for row in compile_for(agent, run).report}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_table_and_the_policy_reports_agree(policy: str) -> None:
    """What is shown as held is reported as enforced; what is shown as not enforced is said in the
    note of its row; a policy is refused exactly where a row is not enforced."""
    capability_of: dict[str, str] = {str(cell): each for cell, each in CAPABILITY.items()}
    wrong: list[str] = []
    for (where, cell, name), mark in TABLE.items():
        if where != policy or cell not in capability_of:
            continue
        rows = reported(name, policy)
        row = rows[capability_of[cell]]
        enforced = not row.unenforced
        strict = not any(each.unenforced for each in rows.values())
        says_race = row.races == "open" and RACES in row.note
        expected = {
            MARKS["held"]: enforced and not (cell == "races" and _is_open_race(row)),
            MARKS["not enforced"]: (cell == "races" and says_race) or not enforced,
            MARKS["allowed"]: row.is_allowed or bool(POLICIES[policy].policy.shell_rules),
            MARKS["refused"]: not strict or cell in ("mcp", "write outside", "read outside"),
        }
        if not expected.get(mark, True) or (not strict and mark != MARKS["refused"]):
            wrong.append(f"{name}: {cell} {mark}: {row}")
    assert wrong == []


def _is_open_race(row: PolicyRow) -> bool:
    return row.is_allowed and row.races == "open"


async def attack(
    name: str, policy: str, sample: int | None = None, only: Sequence[str] = ()
) -> None:
    options: RunKwargs = {"program": installed(name)} if AGENTS[name].programs else {}
    report = await attack_agent(name, policies=[policy], sample=sample, only=only, options=options)
    assert report.ok, str(report)
    if name in {agent for _, _, agent in TABLE}:
        # The one attempt of a small sample may use a tool that the agent does not have.
        seen = {
            cell.cell: MARKS[cell.status]
            for cell in report.policies[0].cells
            if sample is None or cell.status != "no tool"
        }
        assert seen == {cell: TABLE.get((policy, cell, name)) for cell in seen}, "run `make table`"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "policy"), [*cases(SAMPLED, sampled=True)])
async def test_enforced_cells_withstand_and_open_cells_work(name: str, policy: str) -> None:
    # With somebody to ask, a refusal ends the turn of some agents: a prompt for each attempt.
    sample = 1 if POLICIES[policy].person else SMALLER_SAMPLES.get(name, SAMPLE)
    await attack(name, policy, sample, GROUPS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "policy"), [*cases(tuple(POLICIES), sampled=False)])
async def test_enforced_cells_withstand_every_attempt(name: str, policy: str) -> None:
    await attack(name, policy)
