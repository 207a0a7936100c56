"""Mistakes on the command line, reported like every other error: one line, and what to do."""

from __future__ import annotations

from difflib import get_close_matches

import click

SIMILAR = 0.7
"""How similar an option must be to be suggested, from 0 to 1."""


def report(error: click.ClickException) -> str:
    """The text to print for an error of click; for a group without a command, its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    message = _message(error)
    hints = _suggestions(error)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hints.append(f"See: {error.ctx.command_path} --help")
    lines = [
        f"corral: {message[:1].lower()}{message[1:]}",
        *([f"  {' '.join(hints)}"] if hints else []),
    ]
    return "\n".join(lines)


def _message(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        return error.message.removesuffix(".")  # the suggestion is added here
    return error.format_message().removesuffix(".")


def _suggestions(error: click.ClickException) -> list[str]:
    """What was probably meant."""
    if "unexpected extra argument" in error.message and _has_prompt(error):
        return ["Write the prompt in quotes."]
    near: list[str] = []
    if isinstance(error, click.NoSuchOption):
        near = get_close_matches(error.option_name, error.possibilities or (), 1, SIMILAR)
    elif isinstance(error, click.BadParameter) and error.param is not None:
        given, kind = error.message.partition("'")[2].partition("'")[0], error.param.type
        if isinstance(kind, click.Choice):
            near = get_close_matches(given, [str(each) for each in kind.choices], 1)
    return [f"Did you mean {near[0]}?"] if near else []


def _has_prompt(error: click.ClickException) -> bool:
    """Whether the prompt is an argument of the command."""
    command = error.ctx.command if isinstance(error, click.UsageError) and error.ctx else None
    return command is not None and any(
        isinstance(each, click.Argument) and each.name == "prompt" for each in command.params
    )
