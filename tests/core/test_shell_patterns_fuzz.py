"""Generated commands that allow rules accept run no program but the named ones, in real shells.

``shell_fuzz.py`` runs any number of them on demand.
"""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shell_fuzz import HOSTILE, SHELLS, WORDS, evasions, generated

from corral._core.shell_patterns import SimpleCommand

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("shell", SHELLS)
def test_generated_commands_run_only_what_was_parsed(shell: str) -> None:
    ran, found = evasions(shell, list(generated(3000, seed=7)))
    assert found == []
    assert ran > 600


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_started_for_the_command_runs_only_what_was_parsed(shell: str) -> None:
    ran, found = evasions(shell, list(generated(300, seed=11)), exact=True)
    assert found == []
    assert ran > 60


LINES = st.lists(st.sampled_from([*WORDS, *HOSTILE, "g", "evil", " ", " ", ";"]), max_size=8)


@settings(deadline=None, max_examples=8)
@given(lines=st.lists(LINES.map("".join), min_size=40, max_size=80))
def test_commands_of_a_grammar_run_only_what_was_parsed(lines: list[str]) -> None:
    lines = [line for line in lines if "\0" not in line]
    assert evasions("bash", [f"g {line}" for line in lines])[1] == []


def naive(command: str) -> tuple[SimpleCommand, ...] | None:
    """A judge that is wrong: Python's idea of shell words."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None
    if words[:1] != ["g"] or ">" in command or "\r" in command:
        return None
    return (SimpleCommand(command, tuple(words)),)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_fuzz_test_finds_what_a_wrong_matcher_accepts(shell: str) -> None:
    attacks = ["g # '\nevil #'", "g $(evil)", "g x; evil", 'g "`evil`"']
    _, found = evasions(shell, [*attacks, "g x", "g 'a b'"], judge=naive)
    assert len(found) == len(attacks)
