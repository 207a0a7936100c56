"""Options that several commands share."""

from __future__ import annotations

import re

import click
import pytest

from corral._cli.command_types import ALL_OPTIONS, SectionOption
from corral._cli.main import COMMANDS, SECTIONS, command
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


def shown_options(found: click.Command) -> list[click.Parameter]:
    listed = [p for p in found.params if isinstance(p, SectionOption) and not p.is_rare]
    return [p for p in listed if p.opts != ["--help-all"]]


@pytest.mark.parametrize("name", ["run", "batch", "compare", "review", "merge", "serve", "mcp"])
def test_help_has_at_most_20_options_and_help_all_has_the_others(name: str) -> None:
    found = command.get_command(click.Context(command, info_name="corral"), name)
    assert found is not None
    context = click.Context(found, info_name=name)
    short = found.get_help(context)
    context.meta[ALL_OPTIONS] = True
    full = found.get_help(context)
    assert len(shown_options(found)) <= 20
    rare = [p for p in found.params if isinstance(p, SectionOption) and p.is_rare]
    for parameter in rare:
        line = re.compile(rf"^  (-., )?{parameter.opts[-1]}(  | [A-Z[]| /|,|$)", re.MULTILINE)
        assert line.search(full)
        assert not line.search(short)
    assert f"{len(rare)} more options: {name} --help-all" in short


def test_the_groups_of_help_have_every_command_once() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    assert len(SECTIONS) == 5


def test_the_lists_of_commands_fit_a_terminal_of_80_columns() -> None:
    context = click.Context(command, info_name="corral", terminal_width=80, max_content_width=80)
    for name in COMMANDS:
        found = command.get_command(context, name)
        if isinstance(found, click.Group):
            help_text = found.get_help(click.Context(found, context, info_name=name))
            cut = [line for line in help_text.splitlines()[1:] if line.endswith("...")]
            assert cut == [], name
