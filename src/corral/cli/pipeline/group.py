"""``corral pipeline``: graphs of agents, models, commands and people."""

from __future__ import annotations

import click

from corral.cli.lazy_group import Lazy

COMMANDS = {
    "run": ("corral.cli.pipeline.run:run", "Run a pipeline and see it through."),
    "resume": ("corral.cli.pipeline.run:resume", "Go on with a run that was left."),
    "lint": ("corral.cli.pipeline.files:lint", "Say what is wrong with a pipeline."),
    "graph": ("corral.cli.pipeline.files:graph", "Draw a pipeline."),
    "new": ("corral.cli.pipeline.files:new", "Write a pipeline to begin with."),
    "runs": ("corral.cli.pipeline.runs:runs", "List the runs of a database."),
    "show": ("corral.cli.pipeline.runs:show", "What a run did, and what it waits for."),
    "answer": ("corral.cli.pipeline.runs:answer", "Answer what a run asks a person."),
    "cancel": ("corral.cli.pipeline.runs:cancel", "End a run."),
    "fork": ("corral.cli.pipeline.run:fork", "Run again from a node on, as a run of its own."),
}


@click.group("pipeline", cls=Lazy, table=COMMANDS)
def command() -> None:
    """Run pipelines: Graphviz files whose nodes are agents, models, commands and people.

    \b
    Begin with:  corral pipeline new first.dot
                 corral pipeline lint first.dot
                 corral pipeline run first.dot --simulate

    \b
    Exit codes: 0 success · 1 the run failed, or lint found errors · 2 bad input ·
    10 waits for a person · 130 interrupted
    """
