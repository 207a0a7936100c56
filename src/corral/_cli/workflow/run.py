"""``corral workflow run``: execute a workflow in this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.execution import (
    ExecutionFlags,
    execute,
    execution_options,
    keep_json,
    read_execution,
)
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._workflows.definition import Workflow


class WorkflowRunFlags(ExecutionFlags):
    """The options of ``run``."""

    given: tuple[str, ...]


@click.command(
    "run",
    cls=SectionedCommand,
    epilog=examples(
        "corral workflow run review.py --arg part=docs",
        "corral workflow run review.py --simulate",
    ),
)
@click.argument("file", metavar="FILE[:NAME]")
@option("Prompt", "--arg given KEY=VALUE...", "An argument of the function; KEY:=VALUE is JSON.")
@execution_options("step")
def run(file: str, **flags: Unpack[WorkflowRunFlags]) -> int:
    """Run the workflow NAME of the Python file FILE; without a name its only one.

    At a terminal, questions are asked here; elsewhere the command exits with 10 and prints how
    to answer. Progress goes to stderr, the result to stdout: a text, or JSON. After Ctrl-C a
    durable run can be resumed. The options of agents are defaults: those of a step win.

    \b
    Exit codes: 0 success · 1 the run failed · 2 bad input, nothing was started ·
    10 waiting for a person · 130 interrupted
    """
    keep_json(flags)
    workflow = find_workflow(file)
    args = read_args(workflow, flags["given"])
    from corral._engine import workflow_runs
    from corral._engine.dbos import database
    from corral._pipelines.graph import Graph

    options = read_execution(flags)
    if options.get("durable", True):
        database.load(or_in_memory=True)
    graph = Graph(name=workflow.name)
    return execute(
        graph,
        flags,
        "workflow",
        options,
        lambda follow: workflow_runs.start(workflow, args, options, follow),
    )


def find_workflow(named: str) -> Workflow[..., object]:
    """The workflow of ``FILE`` or ``FILE:NAME``. Raises ``ConfigError``."""
    from corral._workflows.definition import load_text, read_file

    path, name = named, ""
    if not os.path.exists(named) and ":" in named:
        path, _, name = named.rpartition(":")
    path = os.path.abspath(path)
    return load_text(path, read_file(path), name)


def read_args(workflow: Workflow[..., object], given: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of ``--arg``. Raises ``ConfigError``."""
    from corral._core.nesting import decode_json

    texts: dict[str, str] = {}
    values: dict[str, object] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.rstrip(":"):
            raise ConfigError(f"--arg {text}: write KEY=VALUE")
        if not key.endswith(":"):
            texts[key] = value
            continue
        try:
            values[key[:-1]] = decode_json(value)
        except msgspec.DecodeError as error:
            raise ConfigError(f"--arg {text}: invalid JSON: {error}") from error
    return workflow.stored_args({**workflow.args_from_texts(texts), **values})
