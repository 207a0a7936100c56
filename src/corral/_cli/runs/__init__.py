"""``corral runs``: the verbs of every kind of run."""

from __future__ import annotations

import click

from corral._cli.command_types import LazyGroup

COMMANDS = {
    "list": ("corral._cli.runs.look:list_runs", "List runs, the newest first."),
    "show": ("corral._cli.runs.look:show", "Show what a run did and what it waits for."),
    "watch": ("corral._cli.runs.playback:watch", "Follow a run of another process."),
    "replay": ("corral._cli.runs.playback:replay", "Play a stored run in the terminal."),
    "export": (
        "corral._cli.runs.export",
        "Write a run in another format.",
    ),
    "usage": ("corral._cli.runs.usage", "Show what runs have used: tokens and cost."),
    "answer": ("corral._cli.runs.control:answer", "Answer what a run waits for."),
    "cancel": ("corral._cli.runs.control:cancel", "End a run; what is finished stays."),
    "steer": ("corral._cli.runs.control:steer", "Send a text to an agent while it works."),
    "budget": ("corral._cli.runs.control:budget", "Show or raise the limits of a run."),
    "resume": ("corral._cli.runs.go_on:resume", "Continue a run that is no success."),
    "fork": ("corral._cli.runs.go_on:fork", "Start a new run with results of another."),
    "delete": ("corral._cli.runs.remove:delete", "Delete runs with all that is stored of them."),
    "prune": ("corral._cli.runs.remove:prune", "Delete runs that ended long ago."),
}


@click.group("runs", cls=LazyGroup)
def command() -> None:
    """Look at runs, answer them, continue them, export and delete them.

    A run is what you have started: a session, a pipeline, a workflow, a batch, a comparison, a
    review or a merge. RUN is the id of one, a unique beginning of it, or 'last', the newest in this
    project.
    """


command.table = COMMANDS
