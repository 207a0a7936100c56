"""``corral pipeline run``: execute a pipeline in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.execution import (
    ExecutionFlags,
    execute,
    execution_options,
    read_execution,
)
from corral._cli.options import IMPORT, import_modules
from corral._cli.ui.terminal import echo
from corral._core.nesting import decode_json
from corral.errors import ConfigError
from corral.values import Json

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from corral._engine.follow_run import FollowOptions
    from corral._engine.run_result import PipelineResult
    from corral._pipelines.graph import Graph


class PipelineRunFlags(ExecutionFlags):
    """The options of ``run``."""

    goal: str | None
    given: tuple[str, ...]
    script: str | None
    modules: tuple[str, ...]


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
@execution_options("node")
@IMPORT
@option(
    "Tests",
    "--script FILE",
    "JSON: the outcomes, labels and outputs of nodes, per visit. Everything else is simulated.",
    is_rare=True,
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
    import_modules(flags["modules"])
    from corral._cli.pipeline.files import format_finding
    from corral._engine import pipeline_runs, start_run
    from corral._engine.dbos import database
    from corral._pipelines.linter import engine

    values = _values(flags["given"])
    options = read_execution(flags)
    options |= {"values": values, "goal": flags["goal"], "imports": flags["modules"]}
    options["script"] = flags["script"]
    graph = pipeline_runs.prepare(
        Path(file),
        values=values,
        goal=flags["goal"],
        model=options.get("model"),
        workspace=Path(options.get("cwd") or ".") if flags["repository"] is None else None,
    )
    if not flags["quiet"]:
        for finding in engine.lint(graph, values=values):
            echo(format_finding(file, finding), err=True)
    if options.get("durable", True):
        database.load(or_in_memory=True)
    elif not (flags["auto_approve"] or flags["simulate"] == "all" or flags["script"]):
        _require_no_questions(graph)

    def start(follow: FollowOptions) -> Awaitable[PipelineResult]:
        source = str(Path(file).absolute())
        request = start_run.RunRequest(options=options, follow=follow, source=source)
        return start_run.execute(request, lambda _: graph)

    return execute(graph, flags, "pipeline", options, start)


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
