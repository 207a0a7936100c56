"""Every agent against the attack kit, with its real program: what its policy report calls enforced
holds, and what it allows works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest
from installed import installed, mark_of

from corral import agents
from corral.testing import attack_agent
from corral.testing.attack import POLICIES

AGENTS = {agent.name: agent for agent in agents.every() if agent.probe is not None}
SAMPLE = 8
"""Attempts of each class and cell in the everyday run; AGENTS=all makes all of them."""
EVERY_DAY = ("default", "edits", "rules", "all")


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [pattern for agent in agents.every() for pattern in agent.env_family]
    for name in list(os.environ):
        if any(fnmatch(name, pattern) for pattern in patterns):
            monkeypatch.delenv(name)


def cases(policies: tuple[str, ...], *more: pytest.MarkDecorator) -> Iterator[object]:
    for name, agent in AGENTS.items():
        marks = [getattr(pytest.mark, mark_of(name))] if agent.programs else []
        for policy in policies:
            yield pytest.param(name, policy, marks=[*marks, *more])


async def attack(name: str, policy: str, sample: int | None) -> None:
    options = {"program": installed(name)} if AGENTS[name].programs else {}
    report = await attack_agent(name, policies=[policy], sample=sample, options=options)
    assert report.ok, str(report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "policy"), [*cases(EVERY_DAY)])
async def test_enforced_cells_hold_and_open_ones_work(name: str, policy: str) -> None:
    await attack(name, policy, SAMPLE)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "policy"), [*cases(tuple(POLICIES), pytest.mark.slow)])
async def test_enforced_cells_hold_against_every_attempt(name: str, policy: str) -> None:
    await attack(name, policy, None)
