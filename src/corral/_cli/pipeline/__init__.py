"""``corral pipeline``: graphs of agents, models, commands and people."""

from __future__ import annotations

import click

from corral._cli.command_types import LazyGroup

COMMANDS = {
    "run": ("corral._cli.pipeline.run:run", "Run a pipeline."),
    "lint": ("corral._cli.pipeline.files:lint", "Check a pipeline for problems."),
    "graph": ("corral._cli.pipeline.files:graph", "Draw a pipeline."),
    "paths": ("corral._cli.pipeline.files:paths", "List the paths that a run can take."),
    "new": ("corral._cli.pipeline.files:new", "Write a pipeline to start with."),
}


@click.group("pipeline", cls=LazyGroup)
def command() -> None:
    """Run pipelines: Graphviz files whose nodes are agents, models, commands and people.

    \b
    Start with:  corral pipeline new minimal
                 corral pipeline lint minimal.dot
                 corral pipeline run minimal.dot --simulate

    \b
    Exit codes: 0 success · 1 the run failed, or lint found errors · 2 bad input ·
    10 waiting for a person · 130 interrupted
    """


command.table = COMMANDS
