"""Options that several commands share."""

from __future__ import annotations

import click
import pytest

from corral._cli.main import COMMANDS, command
from corral._cli.options import database_option


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ""),
        ("runs.db", " --db runs.db"),
        ("my runs.db", " --db 'my runs.db'"),
        ("postgresql://host/runs", " --db postgresql://host/runs"),
        ("postgresql://me@host/runs", " --db postgresql://me@host/runs"),
        ("postgresql://me:s3cret@host:5/runs", " --db 'postgresql://me:***@host:5/runs'"),
        ("postgresql://me:s3@cr:et@host/runs", " --db 'postgresql://me:***@host/runs'"),
        ("postgresql://host/r?a=1&password=s3cret", " --db 'postgresql://host/r?a=1&password=***'"),
        ("postgresql://[s3cret", " --db '***'"),
    ],
)
def test_a_printed_database_option_has_no_password(given: str | None, expected: str) -> None:
    assert database_option(given) == expected


def test_the_lists_of_commands_fit_a_terminal_of_80_columns() -> None:
    context = click.Context(command, info_name="corral", terminal_width=80, max_content_width=80)
    for name in COMMANDS:
        found = command.get_command(context, name)
        if isinstance(found, click.Group):
            help_text = found.get_help(click.Context(found, context, info_name=name))
            cut = [line for line in help_text.splitlines()[1:] if line.endswith("...")]
            assert cut == [], name
