"""``corral pipeline``: graphs of agents, models, commands and people."""

from __future__ import annotations

import click

from corral.cli.command_types import LazyGroup

COMMANDS = {
    "run": ("corral.cli.pipeline.run:run", "Run a pipeline."),
    "resume": ("corral.cli.pipeline.run:resume", "Continue a run."),
    "lint": ("corral.cli.pipeline.files:lint", "Check a pipeline for problems."),
    "graph": ("corral.cli.pipeline.files:graph", "Draw a pipeline."),
    "paths": ("corral.cli.pipeline.files:paths", "List the paths that a run can take."),
    "new": ("corral.cli.pipeline.files:new", "Write a pipeline to start with."),
    "runs": ("corral.cli.pipeline.runs:runs", "List the runs of a database."),
    "show": ("corral.cli.pipeline.runs:show", "Show what a run did and what it waits for."),
    "answer": ("corral.cli.pipeline.runs:answer", "Answer a question of a run."),
    "cancel": ("corral.cli.pipeline.runs:cancel", "Cancel a run."),
    "fork": ("corral.cli.pipeline.run:fork", "Run again from a node, as a new run."),
}


@click.group("pipeline", cls=LazyGroup)
def command() -> None:
    """Run pipelines: Graphviz files whose nodes are agents, models, commands and people.

    \b
    Start with:  corral pipeline new first.dot
                 corral pipeline lint first.dot
                 corral pipeline run first.dot --simulate

    \b
    Exit codes: 0 success · 1 the run failed, or lint found errors · 2 bad input ·
    10 waiting for a person · 130 interrupted
    """


command.table = COMMANDS
