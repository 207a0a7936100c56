"""``corral workflow run``, ``resume`` and ``fork``: execute or follow a run in this process."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.execution import (
    RUN_DIR,
    ExecutionFlags,
    FollowFlags,
    RaiseFlags,
    execute,
    execution_options,
    find_continuation,
    follow_continuation,
    follow_options,
    raise_options,
    read_execution,
)
from corral._cli.options import RUN, read_limits
from corral._cli.ui.terminal import echo, echo_json, json_only
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._engine.workflow_runs import ResumePlan
    from corral._workflows.definition import Workflow


class WorkflowRunFlags(ExecutionFlags):
    """The options of ``run``."""

    given: tuple[str, ...]


class WorkflowResumeFlags(RaiseFlags):
    """The options of ``resume``."""

    dry_run: bool
    new_run: bool


class WorkflowForkFlags(FollowFlags):
    """The options of ``fork``."""

    run_dir: str | None


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


@click.command("resume", cls=SectionedCommand)
@RUN
@option("Execution", "--dry-run", "Print which steps would run again, and do nothing.")
@option(
    "Execution",
    "--new-run",
    "Continue as a new run with the current file, also if it has not changed.",
)
@raise_options
@follow_options
def resume(name: str, **flags: Unpack[WorkflowResumeFlags]) -> int:
    """Continue RUN after it was killed or interrupted, or when it waits for an answer. RUN is its
    id, a unique beginning of it, its run folder, or 'last'.

    Finished steps are not repeated. If the file has changed, or the run has failed or was
    cancelled, a new run continues it: it repeats only the steps whose inputs have changed and
    what depends on them, and prints them before. If RUN was continued so, its newest
    continuation goes on. The exit codes are those of run.
    """
    from corral._engine import workflow_runs

    keep_json(flags)
    db = flags["db"]
    found = find_continuation(
        name, flags, partial(workflow_runs.prepare_resume, new_run=flags["new_run"], db=db)
    )
    if flags["dry_run"] and flags["as_json"]:
        echo_json(msgspec.json.encode(found.plan).decode())
        return 0
    if flags["dry_run"] or (found.plan.is_new_run and not flags["quiet"]):
        print_plan(found.plan)
    if flags["dry_run"]:
        return 0
    return follow_continuation(found, flags, "workflow", limits=read_limits(flags))


@click.command("fork", cls=SectionedCommand)
@RUN
@option("Execution", "--from step STEP", "The first step that runs again.", required=True)
@RUN_DIR
@follow_options
def fork(name: str, step: str, **flags: Unpack[WorkflowForkFlags]) -> int:
    """Run again from STEP, as a new run: the steps of RUN that had ended before STEP count as done.

    Uses the current file of the workflow. The exit codes are those of run.
    """
    from corral._engine import workflow_runs

    keep_json(flags)
    found = find_continuation(
        name, flags, partial(workflow_runs.prepare_fork, step=step, db=flags["db"])
    )
    return follow_continuation(found, flags, "workflow", run_dir=flags["run_dir"])


def keep_json(flags: FollowFlags) -> None:
    """With ``--json`` stdout has JSON only, whatever the program prints."""
    if flags["as_json"]:
        click.get_current_context().with_resource(json_only())


def print_plan(plan: ResumePlan) -> None:
    """Print what a continued run does with the steps of the earlier run."""
    if not plan.is_new_run:
        state = "has ended: nothing would be repeated" if plan.has_ended else "goes on"
        echo(f"{plan.run} {state}; steps that have ended: {len(plan.kept)}", err=True)
        return
    echo(f"a new run continues {plan.run}:", err=True)
    for words, names in (
        ("kept", plan.kept),
        ("repeated", plan.repeated),
        ("kept if it gets the same inputs", plan.depends),
        ("not in the program any more", plan.dropped),
    ):
        for name in names:
            echo(f"  {name}: {words}", err=True)
    if plan.is_partial:
        echo("  what else comes after the repeated steps depends on their results", err=True)


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
