"""``corral workflow``: durable programs in Python."""

from __future__ import annotations

import click

from corral._cli.command_types import LazyGroup

COMMANDS = {
    "run": ("corral._cli.workflow.run:run", "Run a workflow."),
    "new": ("corral._cli.workflow.new:new", "Write a workflow to start with."),
}


@click.group("workflow", cls=LazyGroup)
def command() -> None:
    """Run workflows: async Python functions whose steps are agents, models, commands and people.

    \b
    Start with:  corral workflow new --list
                 corral workflow new fix-test

    \b
    Exit codes: 0 success · 1 the run failed · 2 bad input ·
    10 waiting for a person · 130 interrupted
    """


command.table = COMMANDS
