"""A command with arguments of its own that also has subcommands: ``corral compare PROMPT`` and
``corral compare show ID``."""

from __future__ import annotations

from typing import Any

import click

from corral.cli.sections import SectionedCommand


class SectionedGroup(SectionedCommand, click.Group):
    """The first argument selects a subcommand if it is the name of one; otherwise the command
    itself runs. After ``--`` it is never a subcommand."""

    allow_extra_args = False
    allow_interspersed_args = True

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        found = self.commands.get(args[0]) if args else None
        if found is None:
            return super().make_context(info_name, args, parent, **extra)
        return found.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        return click.Command.invoke(self, ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)
