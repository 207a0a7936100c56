"""The texts that are made of the definitions of the options: a part of a page, and docstrings."""

from __future__ import annotations

import re

import click

from corral._cli.command_types import SECTIONS, SectionOption
from corral._option_definitions import DEFINITIONS, Definition

BEGIN, END = "<!-- made of the option definitions -->", "<!-- end -->"


def with_tables(page: str) -> str:
    """The page with one table of options per section, between the two marks."""
    return _replaced(page, _tables())


def with_flags(page: str, command: click.Command) -> str:
    """The page with a table of the flags of a command, between the two marks."""
    options = [each for each in command.params if isinstance(each, SectionOption)]
    lines = ["", "| option | |", "|---|---|"]
    for section in SECTIONS:
        rows = [_flag_row(each) for each in options if each.section == section]
        lines += [f"| **{section}** | |", *rows] if rows else []
    return _replaced(page, "\n".join(lines) + "\n")


def _flag_row(option: click.Option) -> str:
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag or option.count else f" {option.metavar or ''}".rstrip()
    if isinstance(option.type, click.Choice):
        value = " " + "|".join(str(each) for each in option.type.choices)
    value = value.replace("|", "\\|")
    shown = ", ".join([*(f"`{name}`" for name in names[:-1]), f"`{names[-1]}{value}`"])
    text = re.sub(r"  \[default: (.*)\]$", r" Default: \1.", option.help or "")
    return f"| {shown} | {text} |"


def _replaced(page: str, made: str) -> str:
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def _tables() -> str:
    lines: list[str] = []
    for section in dict.fromkeys(each.section for each in DEFINITIONS):
        lines += ["", f"### {section}", "", "| option | flag | default | |", "|---|---|---|---|"]
        lines += [_row(each) for each in DEFINITIONS if each.section == section]
    return "\n".join(lines) + "\n"


def _row(defined: Definition) -> str:
    flags = ", ".join(
        f"`{name}`" for flag in defined.flags for name in flag.replace("/", " ").split()
    )
    choices = f" {', '.join(f'`{each}`' for each in defined.choices)}." if defined.choices else ""
    return f"| `{defined.name}` | {flags} | {defined.default} | {defined.text}{choices} |"


def with_docstrings(source: str) -> str:
    """The source of ``RunKwargs``, and of what it is made of, with the text of each option below
    its key."""
    start = source.index("class AgentKwargs(TypedDict, total=False):")
    texts = {each.name: each.text for each in DEFINITIONS}
    body: list[str] = []
    is_key = False
    for line in source[start:].splitlines():
        if not (is_key and line.startswith('    """')):
            body.append(line)
        found = re.match(r"    (\w+): ", line)
        is_key = found is not None
        if found:
            body.append(f'    """{texts[found[1]]}"""')
    return source[:start] + "\n".join(body) + "\n"
