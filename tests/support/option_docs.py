"""The texts that are made of the definitions of the options: a part of a page, and docstrings."""

from __future__ import annotations

import re

from corral._option_definitions import DEFINITIONS, Definition

BEGIN, END = "<!-- made of the option definitions -->", "<!-- end -->"


def with_tables(page: str) -> str:
    """The page with one table of options per section, between the two marks."""
    return _replaced(page, _tables())


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
    start = source.index("class RunKwargs(LimitKwargs, total=False):")
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
