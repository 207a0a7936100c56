"""Errors of the command line name options as they are written there."""

from __future__ import annotations

import pytest

from corral._cli.options import as_flags
from corral._option_definitions import DEFINITIONS, Definition


@pytest.mark.parametrize(
    "option", [each for each in DEFINITIONS if each.flags], ids=lambda e: e.name
)
def test_an_error_that_begins_with_an_option_has_its_flag(option: Definition) -> None:
    flag = option.flags[-1].partition("/")[0]
    assert (
        as_flags(f"{option.name} must be more than 0, got: 0")
        == f"{flag} must be more than 0, got: 0"
    )
    in_file = f"corral.toml: {option.name} must be more than 0"
    assert as_flags(in_file) == in_file


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max_cost of task must be more than 0", "--task-max-cost must be more than 0"),
        ("commit needs repository", "--commit needs --repository"),
        ("Use --repository (repository=) too.", "Use --repository too."),
        ("use it: --probe trust (probe='trust').", "use it: --probe trust."),
        ("strict=False (--no-strict) leaves it out.", "--no-strict leaves it out."),
        ("grace must be between 0 and 60", "grace must be between 0 and 60"),
        ("(probe=require)", "(probe=require)"),
        ("modelling is hard", "modelling is hard"),
    ],
)
def test_only_the_form_of_the_command_line_is_left(text: str, shown: str) -> None:
    assert as_flags(text) == shown
