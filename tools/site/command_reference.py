"""The reference of the command line: a page for each command, made of the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from corral._cli.main import COMMANDS, command


def pages() -> Iterator[tuple[str, str]]:
    """The name and the Markdown text of each page, in the order of ``corral --help``."""
    context = click.Context(command, info_name="corral")
    for name in COMMANDS:
        found = command.get_command(context, name)
        if found is not None:
            path = f"corral {name}"
            yield name, "\n\n".join([f"# {path}", *_sections(found, path)]) + "\n"


def _sections(found: click.Command, path: str) -> Iterator[str]:
    """The text of a command, what ``--help`` prints, and its subcommands."""
    context = click.Context(found, info_name=path, max_content_width=90)
    yield f"```text\n{found.get_help(context).rstrip()}\n```"
    if not isinstance(found, click.Group):
        return
    for name in found.list_commands(context):
        inner = found.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield f"## {path} {name}"
            yield from _sections(inner, f"{path} {name}")


def summary() -> str:
    """One line for each command."""
    lines = (f"- [`corral {name}`]({name}.md): {text}" for name, (_, text) in COMMANDS.items())
    return "# Commands\n\n" + "\n".join(lines) + "\n"
