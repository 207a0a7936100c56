"""``corral workflow run``, ``resume`` and ``fork``: execute or follow a run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.options import (
    DB,
    EVERYWHERE,
    FAKE,
    QUEUE,
    RUN,
    PolicyFlags,
    agent_option,
    limit_texts,
    policy_options,
    read_options,
    run_options,
    task_limit_options,
)
from corral._cli.pipeline.run import (
    AUTO,
    EVENTS,
    QUIET,
    RUN_DIR,
    SIMULATE,
    FollowFlags,
    simulate_mode,
)
from corral._cli.ui.terminal import echo, echo_json
from corral._core.spending import LIMITS, BudgetLimits
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._cli.ui.pipeline_output import PipelinePrinter
    from corral._engine.api import PipelineResult
    from corral._engine.workflow_runs import Continuation, ResumePlan
    from corral._pipelines.execution.interviewers import Interviewer
    from corral._workflows.definition import Workflow

REPOSITORY = option(
    "Execution",
    "--repository REPO",
    "Work in a separate git worktree: of the repository that contains this folder,"
    " or, on each machine, of a clone of this URL or bare repository. The work"
    " becomes a branch there.",
)


class WorkflowRunFlags(FollowFlags, PolicyFlags, RunKwargs):
    """The options of ``run``."""

    given: tuple[str, ...]
    task_max_cost: float | None
    task_max_total_tokens: int | None
    task_max_calls: int | None
    agent: str | None
    repository: str | None
    commit: str | None
    artifacts: str | None
    run_id: str | None
    run_dir: str | None
    simulate: str | None
    queue: str | None
    no_durable: bool


class WorkflowResumeFlags(FollowFlags):
    """The options of ``resume``."""

    dry_run: bool
    new_run: bool
    max_cost: float | None
    max_total_tokens: int | None
    max_calls: int | None


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
@agent_option
@policy_options
@run_options(EVERYWHERE, texts=limit_texts("the complete run"), defaults={"timeout": "1h"})
@task_limit_options("each step")
@REPOSITORY
@option("Execution", "--commit REV", "The commit to start from.  [default: HEAD]")
@option(
    "Execution",
    "--artifacts URL",
    "Where the run's artifacts/ are copied: any file system that fsspec supports.",
)
@option("Execution", "--run-id ID", "The id of the run, a new one.")
@RUN_DIR
@DB
@QUEUE
@option("Execution", "--no-durable", "Run in memory; cannot be resumed.")
@AUTO
@EVENTS
@QUIET
@FAKE
@SIMULATE
def run(file: str, **flags: Unpack[WorkflowRunFlags]) -> int:
    """Run the workflow NAME of the Python file FILE; without a name its only one.

    At a terminal, questions are asked here; elsewhere the command exits with 10 and prints how
    to answer. Progress goes to stderr, the result to stdout: a text, or JSON. After Ctrl-C a
    durable run can be resumed. The options of agents are defaults: those of a step win.

    \b
    Exit codes: 0 success · 1 the run failed · 2 bad input, nothing was started ·
    10 waiting for a person · 130 interrupted
    """
    if flags["no_durable"] and (flags["db"] or flags["queue"]):
        raise ConfigError("--no-durable and --db or --queue are both given")
    if flags["queue"] is not None and not flags["queue"].strip():
        raise ConfigError("a queue needs a name")
    if flags["as_json"] and flags["quiet"]:
        raise ConfigError("--json and --quiet are both given")
    workflow = find_workflow(file)
    args = read_args(workflow, flags["given"])
    from corral._engine import workflow_runs
    from corral._engine.api import RunRequest
    from corral._engine.dbos import database

    durable = not flags["no_durable"]
    options = read_options(flags)
    model, cwd = options.pop("model", None), options.pop("cwd", None)
    if durable:
        database.load()
    show = _printer(workflow.name, flags, durable=durable)

    async def execute(interviewer: Interviewer | None) -> PipelineResult:
        request = RunRequest(
            agent=flags["agent"],
            model=model,
            cwd=cwd,
            repository=flags["repository"],
            commit=flags["commit"],
            artifacts=flags["artifacts"] or "",
            run_id=flags["run_id"],
            run_dir=flags["run_dir"],
            simulate=simulate_mode(flags["simulate"]),
            interviewer=interviewer,
            on_event=show.event,
            on_start=show.started,
            durable=durable,
            db=flags["db"],
            queue=flags["queue"],
            of_task=BudgetLimits(
                max_cost=flags["task_max_cost"],
                max_total_tokens=flags["task_max_total_tokens"],
                max_calls=flags["task_max_calls"],
            ),
            options=options,
        )
        return await workflow_runs.start(workflow, args, request)

    return show.run_to_end(execute, auto=flags["auto_approve"])


@click.command("resume", cls=SectionedCommand)
@RUN
@option("Execution", "--dry-run", "Print which steps would run again, and do nothing.")
@option(
    "Execution",
    "--new-run",
    "Continue as a new run with the current file, also if it has not changed.",
)
@run_options(LIMITS, texts={limit: f"Raise {limit} of the run to this." for limit in LIMITS})
@AUTO
@DB
@EVENTS
@QUIET
def resume(name: str, **flags: Unpack[WorkflowResumeFlags]) -> int:
    """Continue RUN after it was killed or interrupted, or when it waits for an answer. RUN is its
    id, a unique beginning of it, its run folder, or 'last'.

    Finished steps are not repeated. If the file has changed, or the run has failed or was
    cancelled, a new run continues it: it repeats only the steps whose inputs have changed and
    what depends on them, and prints them before. The exit codes are those of run.
    """
    from corral._engine import workflow_runs

    run, found = _find(name, flags["db"], lambda id: workflow_runs.prepare_resume(
        id, new_run=flags["new_run"], db=flags["db"]
    ))  # fmt: skip
    if flags["dry_run"] and flags["as_json"]:
        echo_json(msgspec.json.encode(found.plan).decode())
        return 0
    if flags["dry_run"] or (found.plan.is_new_run and not flags["quiet"]):
        print_plan(found.plan)
    if flags["dry_run"]:
        return 0
    limits = BudgetLimits(
        max_cost=flags["max_cost"],
        max_total_tokens=flags["max_total_tokens"],
        max_calls=flags["max_calls"],
    )
    return _continue(run, found, flags, limits=limits)


@click.command("fork", cls=SectionedCommand)
@RUN
@option("Execution", "--from step STEP", "The first step that runs again.", required=True)
@RUN_DIR
@AUTO
@DB
@EVENTS
@QUIET
def fork(name: str, step: str, **flags: Unpack[WorkflowForkFlags]) -> int:
    """Run again from STEP, as a new run: the steps of RUN that had ended before STEP count as done.

    Uses the current file of the workflow. The exit codes are those of run.
    """
    from corral._engine import workflow_runs

    run, found = _find(
        name, flags["db"], lambda id: workflow_runs.prepare_fork(id, step, db=flags["db"])
    )
    return _continue(run, found, flags, run_dir=flags["run_dir"], is_fork=True)


def _find(
    name: str, db: str | None, prepare: Callable[[str], Coroutine[Any, Any, Continuation]]
) -> tuple[str, Continuation]:
    from corral._engine.dbos import database
    from corral._system import threads  # late: asyncio loads ssl, which --help does not need

    database.load()
    from corral._runs.find import find_pipeline_run

    run = find_pipeline_run(name, db)
    return run, threads.run_event_loop(prepare(run))


def _continue(
    run: str,
    found: Continuation,
    flags: FollowFlags,
    *,
    run_dir: str | None = None,
    is_fork: bool = False,
    limits: BudgetLimits | None = None,
) -> int:
    from corral._engine import workflow_runs

    show = _printer(found.program.name, flags)
    show.name = run

    async def execute(interviewer: Interviewer | None) -> PipelineResult:
        return await workflow_runs.continue_run(
            found,
            run_dir=run_dir,
            is_fork=is_fork,
            limits=limits,
            db=flags["db"],
            interviewer=interviewer,
            on_event=show.event,
            on_start=show.started,
        )

    return show.run_to_end(execute, auto=flags["auto_approve"])


def print_plan(plan: ResumePlan) -> None:
    """Print what a continued run does with the steps of the earlier run."""
    if not plan.is_new_run:
        echo(f"{plan.run} goes on: {len(plan.kept)} steps have ended", err=True)
        return
    echo(f"a new run continues {plan.run}:", err=True)
    for words, names in (
        ("kept", plan.kept),
        ("repeated", plan.repeated),
        ("kept if its inputs stay the same", plan.depends),
        ("not in the program any more", plan.dropped),
    ):
        for name in names:
            echo(f"  {name}: {words}", err=True)


def _printer(name: str, flags: FollowFlags, *, durable: bool = True) -> PipelinePrinter:
    from corral._cli.ui.pipeline_output import WORKFLOW, PipelinePrinter
    from corral._pipelines.graph import Graph

    return PipelinePrinter(
        Graph(name=name),
        as_json=flags["as_json"],
        quiet=flags["quiet"],
        db=flags["db"],
        durable=durable,
        words=WORKFLOW,
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
