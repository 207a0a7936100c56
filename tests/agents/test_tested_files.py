"""The table of the programs that were tested, against those that ``make agents`` installs."""

from __future__ import annotations

import pytest
from support.installed_agents import ON_DEMAND, installed, mark_of

from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._agents.tested_files import TESTED
from corral._sessions.proof import can_probe, find_proof
from corral._system import programs
from corral.options import RunOptions

AGENTS = {each.package.name: each for each in registry.all_agents() if can_probe(each)}
WITHOUT = ("google-antigravity",)
"""Beside its files is Python's byte code, which is not the same twice."""


def params() -> list[object]:
    found: list[object] = []
    for package, agent in AGENTS.items():
        mark = mark_of(agent.name)
        marks = [getattr(pytest.mark, mark), pytest.mark.real_agent]
        is_large = agent.programs[0] in ("claude", "codex")
        marks += [pytest.mark.deep] if is_large or mark in ON_DEMAND else []
        if package not in WITHOUT:
            found.append(pytest.param(agent, id=agent.programs[0], marks=marks))
    return found


@pytest.mark.parametrize("agent", params())
def test_the_installed_program_needs_no_probe_wherever_it_is(agent: AgentSpec) -> None:
    """``tools/tested_files.py`` writes the table."""
    if programs.machine() not in {entry.machine for entry in TESTED}:
        pytest.skip(f"nothing is known about {programs.machine()}")
    # The home of this test is another one: so it is not known as installed by corral.
    found = programs.locate(agent, installed(agent.name))
    assert not programs.is_managed(agent, found)
    run = RunOptions.build(agent.name, {"probe": "require"})
    assert find_proof(agent, run, found).proof == "tested"


def test_every_entry_is_of_the_version_that_is_installed() -> None:
    assert {*AGENTS} - {*WITHOUT} == {entry.package for entry in TESTED}
    for entry in TESTED:
        assert entry.version == AGENTS[entry.package].package.tested
        assert AGENTS[entry.package].package.digests[entry.digest] == entry.version
