"""Which tests ``make test-fast`` deselects: those that start a real agent, Postgres, processes of
the durable engine or complete programs.

The mark of an agent, a fixture or the folder decides. A test that starts an agent or Postgres
without a mark fails (``require``), so that ``make test-fast`` cannot run it by accident. Modules
outside ``WHOLE_PROGRAMS`` that start programs set the mark ``whole_program`` themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.installed_agents import mark_of

from corral._agents import registry

AGENT_MARKS = frozenset(mark_of(agent.name) for agent in registry.all_agents() if agent.programs)
FIXTURES = {
    "gemini_program": "real_agent",
    "postgres_server": "postgres",
    "fork_server": "worker_process",
}
"""Fixture → mark of every test that uses it."""

WHOLE_PROGRAMS = ("cli", "examples", "real_agents")
"""Folders of ``tests/`` whose tests start the command line or a real agent."""
TESTS = Path(__file__).parents[1]

_running: list[pytest.Item] = []


def add_marks(item: pytest.Item) -> None:
    fixtures: set[str] = set(getattr(item, "fixturenames", ()))
    found = {mark for fixture, mark in FIXTURES.items() if fixture in fixtures}
    if not AGENT_MARKS.isdisjoint(mark.name for mark in item.iter_markers()):
        found.add("real_agent")
    if item.path.relative_to(TESTS).parts[0] in WHOLE_PROGRAMS:
        found.add("whole_program")
    # What processes of the engine use is not measured: they end after the test, or outlive it.
    if "worker_process" in found and item.get_closest_marker("spine") is None:
        found.add("deep")
    if item.get_closest_marker("deep_but_first"):
        assert isinstance(item, pytest.Function)
        if any(item.callspec.indices.values()):
            found.add("deep")
    for mark in found:
        item.add_marker(mark)


def leaves_out(path: Path, expression: str) -> bool:
    """Whether ``-m expression`` deselects all tests in this folder: then they are not collected,
    which takes time in every worker."""
    is_program = path.parent == TESTS and path.name in WHOLE_PROGRAMS
    return is_program and "not whole_program" in expression


def begin(item: pytest.Item) -> None:
    _running[:] = [item]


def require(mark: str) -> None:
    """Fail a test that needs this mark and does not have it."""
    for item in _running:
        if item.get_closest_marker(mark) is None:
            which = "the mark of its agent" if mark == "real_agent" else f"the mark {mark}"
            pytest.fail(f"{item.nodeid} needs {which}: without it `make test-fast` runs it")
