"""``corral help``: the help text of a command."""

from __future__ import annotations

import click

from corral.cli.command_group import SectionedGroup
from corral.cli.ui.terminal import echo


@click.command("help")
@click.argument("commands", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, commands: tuple[str, ...]) -> None:
    """Show the help of a command: corral help sessions list."""
    shown = ctx.find_root()
    for name in commands:
        group = shown.command
        if not isinstance(group, click.Group):
            shown.fail(f"{shown.command_path!r} has no commands")
        _, found, _ = group.resolve_command(shown, [name])
        if found is None:
            shown.fail(f"no command is called {name!r}")
        if isinstance(group, SectionedGroup):  # its own arguments are not those of the subcommand
            shown = click.Context(found, info_name=f"{shown.info_name} {name}", parent=shown.parent)
        else:
            shown = click.Context(found, info_name=name, parent=shown)
    echo(shown.get_help())
