"""``corral pipeline run``, ``resume`` and ``fork``: execute or follow a run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.options import (
    DB,
    EVERYWHERE,
    FAKE,
    IMPORT,
    QUEUE,
    RUN,
    PolicyFlags,
    agent_option,
    import_modules,
    limit_texts,
    policy_options,
    read_options,
    run_options,
    task_limit_options,
)
from corral._cli.ui.terminal import echo
from corral._core.nesting import decode_json
from corral._core.spending import LIMITS, BudgetLimits, Raise
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs
from corral.values import Json

if TYPE_CHECKING:
    from corral._cli.ui.pipeline_output import PipelinePrinter
    from corral._engine.api import PipelineResult
    from corral._engine.query import RunDetails
    from corral._pipelines.execution.interviewers import Interviewer
    from corral._pipelines.graph import Graph
    from corral._pipelines.simulation import SimulateMode

EVENTS = option(
    "Output", "--json as_json", "Print events, one per line; the result is the last line."
)
QUIET = option("Output", "-q --quiet", "Print only the answer.")
AUTO = option("Execution", "--auto-approve", "Answer every gate with its first choice.")
RUN_DIR = option("Execution", "--run-dir DIR", "The run folder, new or empty.")


class FollowFlags(TypedDict):
    """The options of every command that follows a run."""

    auto_approve: bool
    db: str | None
    as_json: bool
    quiet: bool


SIMULATE = option(
    "Tests",
    "--simulate [=all]",
    "Simulate agents and models: nothing is spent. Commands run; with =all nothing"
    " runs: no command, request or file, and gates and questions are answered.",
    type=click.Choice(["agents", "all"]),
    bare="agents",
)


class PipelineRunFlags(FollowFlags, PolicyFlags, RunKwargs):
    """The options of ``run``."""

    goal: str | None
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
    script: str | None
    modules: tuple[str, ...]
    queue: str | None
    no_durable: bool


class ResumeFlags(FollowFlags):
    """The options of ``resume``."""

    accept: bool
    modules: tuple[str, ...]
    max_cost: float | None
    max_total_tokens: int | None
    max_calls: int | None


class ForkFlags(FollowFlags):
    """The options of ``fork``."""

    run_dir: str | None


@click.command(
    "run",
    cls=SectionedCommand,
    epilog=examples(
        'corral pipeline run release.dot --goal "Version 2.4" --max-cost 5',
        "corral pipeline run release.dot --simulate",
    ),
)
@click.argument("file", type=click.Path())
@option("Prompt", "--goal TEXT", "Replaces the file's goal.")
@option("Prompt", "--set given KEY=VALUE...", "A value of the context; KEY:=VALUE is JSON.")
@agent_option
@policy_options
@run_options(EVERYWHERE, texts=limit_texts("the complete run"), defaults={"timeout": "1h"})
@task_limit_options("each node")
@option(
    "Execution",
    "--repository REPO",
    "Work in a separate git worktree: of the repository that contains this folder,"
    " or, on each machine, of a clone of this URL or bare repository. The work"
    " becomes a branch there.",
)
@option("Execution", "--commit REV", "The commit to start from.  [default: HEAD]")
@option(
    "Execution",
    "--artifacts URL",
    "Where the run's artifacts/ are copied: any file system that fsspec supports.",
)
@option("Execution", "--run-id ID", "The id of the run, a new one.")
@RUN_DIR
@IMPORT
@DB
@QUEUE
@option("Execution", "--no-durable", "Run in memory; cannot be resumed.")
@AUTO
@EVENTS
@QUIET
@FAKE
@SIMULATE
@option(
    "Tests",
    "--script FILE",
    "JSON: the outcomes, labels and outputs of nodes, per visit. Everything else is simulated.",
)
def run(file: str, **flags: Unpack[PipelineRunFlags]) -> int:
    """Run the pipeline FILE.

    At a terminal, gates are asked here; elsewhere the command exits with 10 and prints how to
    answer. Progress goes to stderr, the last answer to stdout. After Ctrl-C a durable run can
    be resumed. The options of agents are defaults: the attributes of a node win over them.

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
    import_modules(flags["modules"])
    from corral._cli.pipeline.files import format_finding
    from corral._engine import api
    from corral._engine.dbos import database
    from corral._engine.workspace import run_worktree
    from corral._pipelines.linter import engine

    durable = not flags["no_durable"]
    values = _values(flags["given"])
    options = read_options(flags)
    model, cwd = options.pop("model", None), options.pop("cwd", None)
    repository = flags["repository"]
    graph = api.prepare(
        Path(file),
        values=values,
        goal=flags["goal"],
        model=model,
        workspace=Path(cwd or ".") if repository is None else None,
    )
    if not flags["quiet"]:
        for finding in engine.lint(graph, values=values):
            echo(format_finding(file, finding), err=True)
    if durable:
        database.load()
    elif not (flags["auto_approve"] or flags["simulate"] == "all" or flags["script"]):
        _require_no_questions(graph)
    show = _printer(graph, flags, durable=durable)
    source = str(Path(file).absolute())
    if repository is not None and run_worktree.uncommitted(repository):
        show.progress.print_line("! uncommitted changes in the repository are not part of this run")

    async def execute(interviewer: Interviewer | None) -> PipelineResult:
        return await api.run(
            graph,
            goal=flags["goal"],
            values=values,
            agent=flags["agent"],
            model=model,
            cwd=cwd,
            repository=repository,
            commit=flags["commit"],
            artifacts=flags["artifacts"] or "",
            run_id=flags["run_id"],
            run_dir=flags["run_dir"],
            simulate=simulate_mode(flags["simulate"]),
            script=flags["script"],
            interviewer=interviewer,
            on_event=show.event,
            on_start=show.started,
            durable=durable,
            db=flags["db"],
            queue=flags["queue"],
            imports=flags["modules"],
            source=source,
            task_max_cost=flags["task_max_cost"],
            task_max_total_tokens=flags["task_max_total_tokens"],
            task_max_calls=flags["task_max_calls"],
            options=options,
        )

    return show.run_to_end(execute, auto=flags["auto_approve"])


@click.command(
    "resume",
    cls=SectionedCommand,
    epilog=examples("corral pipeline resume last", "corral pipeline resume last --max-cost 10"),
)
@RUN
@option(
    "Execution",
    "--accept-changed-graph accept",
    "If the pipeline's file has changed: a new run continues with the current file,"
    " from all that is finished.",
)
@run_options(LIMITS, texts={limit: f"Raise {limit} of the run to this." for limit in LIMITS})
@AUTO
@IMPORT
@DB
@EVENTS
@QUIET
def resume(name: str, **flags: Unpack[ResumeFlags]) -> int:
    """Continue RUN after it was killed or interrupted, or when it waits for an answer. RUN is its
    id, a unique beginning of it, its run folder, or 'last'.

    Finished nodes are not repeated. A run that a worker executes is only followed. The exit
    codes are those of run.
    """
    import_modules(flags["modules"])
    from corral._engine import api, service

    details = _find_run(name, flags["db"])
    name = details.id
    show = _printer(details.graph, flags)
    show.name = name
    totals = BudgetLimits(
        max_cost=flags["max_cost"],
        max_total_tokens=flags["max_total_tokens"],
        max_calls=flags["max_calls"],
    ).as_dict()

    async def execute(interviewer: Interviewer | None) -> PipelineResult:
        if totals:
            await service.add_budget(name, Raise.of(totals), is_total=True, db=flags["db"])
        return await api.resume(
            name,
            accept_changed_graph=flags["accept"],
            db=flags["db"],
            interviewer=interviewer,
            on_event=show.event,
            on_start=show.started,
        )

    return show.run_to_end(execute, auto=flags["auto_approve"])


@click.command(
    "fork",
    cls=SectionedCommand,
    epilog=examples(
        "corral pipeline fork last --from plan",
        "corral pipeline fork last --from plan --auto-approve",
    ),
)
@RUN
@option("Execution", "--from node NODE", "The first node that runs again.", required=True)
@RUN_DIR
@AUTO
@DB
@EVENTS
@QUIET
def fork(name: str, node: str, **flags: Unpack[ForkFlags]) -> int:
    """Run again from NODE, as a new run: what RUN did before NODE counts as done.

    Uses the current file of the pipeline. The exit codes are those of run.
    """
    from corral._engine import api

    details = _find_run(name, flags["db"])
    name = details.id
    graph = api.current_graph(details) or details.graph
    show = _printer(graph, flags)

    async def execute(interviewer: Interviewer | None) -> PipelineResult:
        return await api.fork(
            name,
            node,
            graph=graph,
            run_dir=flags["run_dir"],
            db=flags["db"],
            interviewer=interviewer,
            on_event=show.event,
            on_start=show.started,
        )

    return show.run_to_end(execute, auto=flags["auto_approve"])


def simulate_mode(given: str | None) -> SimulateMode:
    """What ``--simulate`` means."""
    return "all" if given == "all" else given is not None


def _printer(graph: Graph, flags: FollowFlags, *, durable: bool = True) -> PipelinePrinter:
    from corral._cli.ui.pipeline_output import PipelinePrinter

    return PipelinePrinter(
        graph, as_json=flags["as_json"], quiet=flags["quiet"], db=flags["db"], durable=durable
    )


def _find_run(name: str, db: str | None) -> RunDetails:
    """The durable run that a person named."""
    from corral._engine import query
    from corral._engine.dbos import database
    from corral._system import threads  # late: asyncio loads ssl, which --help does not need

    database.load()
    from corral._runs.find import find_pipeline_run

    return threads.run_event_loop(query.show(find_pipeline_run(name, db), db=db))


def _values(given: tuple[str, ...]) -> dict[str, Json]:
    values: dict[str, Json] = {}
    for text in given:
        key, equals, value = text.partition("=")
        as_json = key.endswith(":")
        key = key.removesuffix(":").strip()
        if not equals or not key:
            raise ConfigError(f"--set {text}: write KEY=VALUE")
        if key.startswith(("graph.", "internal.")):
            raise ConfigError(f"--set {text}: {key} is reserved for the engine")
        try:
            values[key] = decode_json(value) if as_json else value
        except msgspec.DecodeError as error:
            raise ConfigError(f"--set {text}: invalid JSON: {error}") from error
    return values


def _require_no_questions(graph: Graph) -> None:
    """A run in memory cannot wait for an answer from elsewhere."""
    from corral._pipelines import node_kinds
    from corral._system.terminal import is_interactive, read_from_terminal

    read_from_terminal()
    asks = [
        node.id
        for node in graph.of_kind(node_kinds.WAIT_HUMAN.name)
        if node.seconds("human.timeout") is None
    ]
    if asks and not is_interactive():
        raise ConfigError(
            f"{', '.join(asks)} would ask a person, but there is no terminal",
            hint="Without --no-durable the run waits for an answer; or use --auto-approve.",
        )
