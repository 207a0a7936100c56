"""Every agent against the attack kit, with its real program: what its policy report calls enforced
holds, and what it allows works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from installed import installed, mark_of

from corral.agents import registry
from corral.testing import attack_agent
from corral.testing.attack import POLICIES
from corral.testing.attack.report import MARKS

DOCS = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
AGENTS = {agent.name: agent for agent in registry.every() if agent.probe is not None}
SAMPLE = 8
"""Attempts of each class and cell in the everyday run; AGENTS=all makes all of them."""
EVERY_DAY = ("default", "edits", "rules", "all")


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [pattern for agent in registry.every() for pattern in agent.env_family]
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            monkeypatch.delenv(name)


def cases(policies: tuple[str, ...], *more: pytest.MarkDecorator) -> Iterator[object]:
    for name, agent in AGENTS.items():
        marks = [getattr(pytest.mark, mark_of(name))] if agent.programs else []
        for policy in policies:
            yield pytest.param(name, policy, marks=[*marks, *more])


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
    assert {name for _, _, name in TABLE} <= {*AGENTS}, "run `make table`"
    assert {
        mark for mark in TABLE.values() if mark in (MARKS["broken"], MARKS["unproven"])
    } == set()


async def attack(name: str, policy: str, sample: int | None) -> None:
    options = {"program": installed(name)} if AGENTS[name].programs else {}
    report = await attack_agent(name, policies=[policy], sample=sample, options=options)
    assert report.ok, str(report)
    if name in {agent for _, _, agent in TABLE}:
        seen = {cell.cell: MARKS[cell.status] for cell in report.policies[0].cells}
        assert seen == {cell: TABLE.get((policy, cell, name)) for cell in seen}, "run `make table`"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "policy"), [*cases(EVERY_DAY)])
async def test_enforced_cells_hold_and_open_ones_work(name: str, policy: str) -> None:
    await attack(name, policy, SAMPLE)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "policy"), [*cases(tuple(POLICIES), pytest.mark.slow)])
async def test_enforced_cells_hold_against_every_attempt(name: str, policy: str) -> None:
    await attack(name, policy, None)
