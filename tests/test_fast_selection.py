"""The fast run has no test of a real agent, of Postgres, of worker processes or of complete
programs."""

from __future__ import annotations

import pytest
from support import fast_selection
from support.installed_agents import installed


@pytest.mark.parametrize(
    ("needed", "words"),
    [("real_agent", "needs the mark of its agent"), ("postgres", "needs the mark postgres")],
)
def test_a_test_that_starts_one_without_the_mark_fails(needed: str, words: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=words):
        fast_selection.require(needed)


def test_a_real_agent_is_not_handed_to_a_test_without_the_mark() -> None:
    with pytest.raises(pytest.fail.Exception, match="needs the mark of its agent"):
        installed("gemini-cli")


@pytest.mark.codex
def test_the_mark_of_an_agent_is_enough(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("real_agent")
    fast_selection.require("real_agent")


def test_the_tests_of_the_command_line_start_complete_programs(pytestconfig: pytest.Config) -> None:
    for folder in fast_selection.WHOLE_PROGRAMS:
        assert list((pytestconfig.rootpath / "tests" / folder).rglob("test_*.py"))


def test_their_folders_are_not_even_collected_if_they_are_deselected() -> None:
    folder = fast_selection.TESTS / "cli"
    assert fast_selection.leaves_out(folder, "not deep and not whole_program")
    assert not fast_selection.leaves_out(folder, "not deep")
    assert not fast_selection.leaves_out(fast_selection.TESTS / "models", "not whole_program")
    assert not fast_selection.leaves_out(folder / "cli", "not whole_program")


def test_a_test_outside_these_folders_is_not_a_complete_program(
    request: pytest.FixtureRequest,
) -> None:
    assert request.node.get_closest_marker("whole_program") is None
