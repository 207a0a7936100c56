"""What `corral pipeline` and `corral workflow` share: the options of the commands that execute or
follow a run in this process, and how they do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, cast

import click

from corral._cli.command_types import Decorator, all_of, option
from corral._cli.options import (
    DB,
    EVERYWHERE,
    FAKE,
    PolicyFlags,
    agent_option,
    check_output_flags,
    check_queue,
    limit_texts,
    policy_options,
    read_limits,
    read_options,
    run_options,
    task_limit_options,
)
from corral._cli.ui.terminal import json_only
from corral._core.spending import LIMITS, LimitKwargs
from corral._option_definitions import EXECUTION
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._cli.ui.pipeline_output import PipelinePrinter
    from corral._engine.follow_run import FollowOptions
    from corral._engine.run_options import PipelineKwargs
    from corral._engine.run_result import PipelineResult
    from corral._pipelines.graph import Graph


RunKind: TypeAlias = Literal["pipeline", "workflow"]
RUN_DIR = run_options(["run_dir"])


class FollowFlags(TypedDict):
    """The values of ``follow_options``."""

    auto_approve: bool
    db: str | None
    as_json: bool
    quiet: bool


follow_options: Decorator = all_of(
    (
        DB,
        option("Execution", "--auto-approve", "Answer every gate with its first choice."),
        option(
            "Output", "--json as_json", "Print events, one per line; the result is the last line."
        ),
        option("Output", "-q --quiet", "Print only the answer."),
        FAKE,
    )
)
"""The options of every command that follows a run."""


class RaiseFlags(FollowFlags, LimitKwargs):
    """The values of ``raise_options``."""


raise_options = run_options(
    LIMITS, texts={limit: f"Raise {limit} of the run to this." for limit in LIMITS}
)
"""Options that raise the limits of a run that is continued."""


class ExecutionFlags(FollowFlags, PolicyFlags, RunKwargs):
    """The values of ``execution_options``. Those of one with a definition are read by its name."""

    agent: str | None
    repository: str | None
    queue: str | None
    durable: bool | None
    simulate: Literal["agents", "all"] | None


def execution_options(part: str) -> Decorator:
    """The options of a command that executes a run. ``part``: how one of its parts is called."""
    return all_of(
        (
            agent_option,
            policy_options,
            run_options(
                EVERYWHERE, texts=limit_texts("the complete run"), defaults={"timeout": "1h"}
            ),
            task_limit_options(f"each {part}"),
            run_options(each.name for each in EXECUTION),
            follow_options,
            option(
                "Tests",
                "--simulate [=all]",
                "Simulate agents and models: nothing is spent. Commands run; with =all nothing"
                " runs: no command, request or file, and gates and questions are answered.",
                type=click.Choice(["agents", "all"]),
                bare="agents",
            ),
        )
    )


def read_execution(flags: ExecutionFlags) -> PipelineKwargs:
    """The options of the run. Raises ``ConfigError`` if they contradict each other."""
    if flags["durable"] is False and (flags["db"] or flags["queue"]):
        raise ConfigError("--no-durable and --db or --queue are both given")
    if flags["queue"] is not None and not flags["queue"].strip():
        raise ConfigError("a queue needs a name")
    check_queue(flags["queue"])
    own = {name: flags.get(name) for name in ("agent", *(each.name for each in EXECUTION))}
    simulate = "all" if flags["simulate"] == "all" else flags["simulate"] is not None
    given = {**own, "task": read_limits(flags, "task_"), "simulate": simulate}
    options = {name: value for name, value in given.items() if value is not None}
    return cast("PipelineKwargs", {**read_options(flags), **options})


def make_printer(
    graph: Graph, flags: FollowFlags, kind: RunKind, *, durable: bool = True
) -> PipelinePrinter:
    """What prints a run that is executed or followed. Raises ``ConfigError``."""
    check_output_flags(as_json=flags["as_json"], quiet=flags["quiet"])
    from corral._cli.ui.pipeline_output import PipelinePrinter

    return PipelinePrinter(
        graph,
        as_json=flags["as_json"],
        quiet=flags["quiet"],
        auto_approve=flags["auto_approve"],
        db=flags["db"],
        durable=durable,
        kind=kind,
    )


def execute(
    graph: Graph,
    flags: FollowFlags,
    kind: RunKind,
    options: PipelineKwargs,
    start: Callable[[FollowOptions], Awaitable[PipelineResult]],
) -> int:
    """Execute a run to its end, and print it; returns the exit code."""
    show = make_printer(graph, flags, kind, durable=options.get("durable", True))
    if (repository := options.get("repository")) is not None:
        from corral._engine.workspace import run_worktree

        if run_worktree.uncommitted(repository):
            show.progress.print_line(
                "! uncommitted changes in the repository are not part of this run"
            )
    return show.run_to_end(start)


def find_pipeline_run(name: str, db: str | None) -> str:
    """The id of the durable run that a person named. Raises ``ConfigError``."""
    from corral._runs import lookup

    return lookup.find(name, db=db, kinds=("pipeline", "workflow")).id


def keep_json(flags: FollowFlags) -> None:
    """With ``--json`` stdout has JSON only, whatever the program prints."""
    if flags["as_json"]:
        click.get_current_context().with_resource(json_only())
