"""``corral pipeline run``, ``resume`` and ``fork``: execute or follow a run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from corral.cli.import_option import import_modules
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError
from corral.nesting import decode_json
from corral.values import Json

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from corral.durable.api import PipelineResult
    from corral.options import RunKwargs
    from corral.pipelines.execution.interviewers import Interviewer
    from corral.pipelines.graph import Graph

DB = click.option(
    "--db",
    metavar="URL",
    help="The database: a file, or postgresql://user@host/name.  [default: CORRAL_DB,"
    " else a file in corral's home]",
)
NEWEST = click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=20,
    show_default=True,
    help="How many, the newest first.",
)
JSON = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print events, one per line; the result is the last line.",
)
AUTO = click.option("--auto-approve", is_flag=True, help="Answer every gate with its first choice.")


@click.command("run")
@click.argument("file")
@click.option("--goal", metavar="TEXT", help="Replaces the file's goal.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value of the context; KEY:=VALUE is JSON (repeatable).",
)
@click.option("-a", "--agent", help="For nodes that name no agent and no model.")
@click.option(
    "-m", "--model", help="For nodes that name no model; vendor:model runs the built-in agent."
)
@click.option(
    "--approve",
    type=click.Choice(["reads", "edits", "all"]),
    help="What agents may do, if their node has no policy.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME",
    help="Pass this variable on to agents and commands (repeatable).",
)
@click.option("--workspace", metavar="DIR", help="Where agents and commands work.  [default: here]")
@click.option("--repository", metavar="REPO", help="Work in a separate git worktree: of the"
              " repository that contains this folder, or, on each machine, of a clone of this URL"
              " or bare repository. The work becomes a branch there.")  # fmt: skip
@click.option("--commit", metavar="REV", help="The commit to start from.  [default: HEAD]")
@click.option("--artifacts", metavar="URL", help="Where the run's artifacts/ are copied:"
              " any file system that fsspec supports.")  # fmt: skip
@click.option("--run-dir", metavar="DIR", help="The run folder, new or empty.")
@click.option("--simulate", is_flag=True, help="Simulate agents and models: nothing is"
              " spent. Commands run.")  # fmt: skip
@AUTO
@click.option("--import", "modules", multiple=True, metavar="MODULE", help="Import this module,"
              " which registers node types (repeatable).")  # fmt: skip
@DB
@click.option("--queue", metavar="NAME", help="Let the workers of this queue do the work.")
@click.option("--no-durable", is_flag=True, help="Run in memory; cannot be resumed.")
@JSON
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def run(file: str, **given: Any) -> int:
    """Run the pipeline FILE.

    At a terminal, gates are asked here; elsewhere the command exits with 10 and prints how to
    answer. Progress goes to stderr, the last answer to stdout. After Ctrl-C a durable run can
    be resumed.

    \b
    Exit codes: 0 success · 1 the run failed · 2 bad input, nothing was started ·
    10 waiting for a person · 130 interrupted
    """
    durable = not given["no_durable"]
    if not durable and (given["db"] or given["queue"]):
        raise ConfigError("--no-durable and --db or --queue are both given")
    if given["queue"] is not None and not given["queue"].strip():
        raise ConfigError("a queue needs a name")
    if given["as_json"] and given["quiet"]:
        raise ConfigError("--json and --quiet are both given")
    import_modules(given["modules"])
    from corral.cli.ui.pipeline_output import RunOutput
    from corral.durable import api
    from corral.durable.workspace import run_worktree

    values = _values(given["given"])
    repository = given["repository"]
    graph = api.prepare(
        Path(file),
        values=values,
        goal=given["goal"],
        model=given["model"],
        workspace=Path(given["workspace"] or ".") if repository is None else None,
    )
    if not given["quiet"]:
        _warn(file, graph)
    if durable:
        _require_engine()
    if not durable and not given["auto_approve"]:
        _require_no_questions(graph)
    show = RunOutput(
        graph,
        as_json=given["as_json"],
        quiet=given["quiet"],
        db=given["db"],
        durable=durable,
    )
    source = str(Path(file).absolute())
    if repository is not None and run_worktree.uncommitted(repository):
        show.progress.print_line("! uncommitted changes in the repository are not part of this run")
    options: RunKwargs = {"policy": given["approve"]} if given["approve"] else {}
    if given["env"]:
        options["pass_env"] = list(given["env"])

    async def execute(people: Interviewer | None) -> PipelineResult:
        return await api.run(
            graph,
            goal=given["goal"],
            values=values,
            agent=given["agent"],
            model=given["model"],
            workspace=given["workspace"],
            repository=repository,
            commit=given["commit"],
            artifacts=given["artifacts"] or "",
            run_dir=given["run_dir"],
            simulate=given["simulate"],
            people=people,
            on_event=show.event,
            on_start=show.started,
            durable=durable,
            db=given["db"],
            queue=given["queue"],
            imports=given["modules"],
            source=source,
            options=options,
        )

    return show.run_to_end(execute, auto=given["auto_approve"])


@click.command("resume")
@click.argument("name", metavar="RUN")
@click.option(
    "--accept-changed-graph",
    "accept",
    is_flag=True,
    help="If the pipeline's file has changed: a new run continues with the current file, from all"
    " that is finished.",
)
@AUTO
@click.option("--import", "modules", multiple=True, metavar="MODULE", help="Import this module,"
              " which registers node types (repeatable).")  # fmt: skip
@DB
@JSON
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def resume(name: str, **given: Any) -> int:
    """Continue RUN after it was killed or interrupted, or when it waits for an answer. RUN is its
    id or its run folder.

    Finished nodes are not repeated. A run that a worker executes is only followed. The exit
    codes are those of run.
    """
    import_modules(given["modules"])
    _require_engine()
    from corral.cli.ui.pipeline_output import RunOutput
    from corral.durable import api

    name = run_id(name)
    shown = _run_async(api.show(name, db=given["db"]))
    show = RunOutput(shown.graph, as_json=given["as_json"], quiet=given["quiet"], db=given["db"])
    show.name = name

    async def execute(people: Interviewer | None) -> PipelineResult:
        return await api.resume(
            name,
            accept_changed_graph=given["accept"],
            db=given["db"],
            people=people,
            on_event=show.event,
            on_start=show.started,
        )

    return show.run_to_end(execute, auto=given["auto_approve"])


@click.command("fork")
@click.argument("name", metavar="RUN")
@click.option(
    "--from", "node", required=True, metavar="NODE", help="The first node that runs again."
)
@click.option("--run-dir", metavar="DIR", help="The run folder, new or empty.")
@AUTO
@DB
@JSON
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
def fork(name: str, node: str, **given: Any) -> int:
    """Run again from NODE, as a new run: what RUN did before NODE counts as done.

    Uses the current file of the pipeline. The exit codes are those of run.
    """
    _require_engine()
    from corral.cli.ui.pipeline_output import RunOutput
    from corral.durable import api

    name = run_id(name)
    shown = _run_async(api.show(name, db=given["db"]))
    graph = api.current_graph(shown) or shown.graph
    show = RunOutput(graph, as_json=given["as_json"], quiet=given["quiet"], db=given["db"])

    async def execute(people: Interviewer | None) -> PipelineResult:
        return await api.fork(
            name,
            node,
            graph=graph,
            run_dir=given["run_dir"],
            db=given["db"],
            people=people,
            on_event=show.event,
            on_start=show.started,
        )

    return show.run_to_end(execute, auto=given["auto_approve"])


def _run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    import asyncio  # imported late: it loads ssl, which --help does not need

    return asyncio.run(coroutine)


def run_id(name: str) -> str:
    """The id of a run that is named by its id or by its run folder. Raises ``ConfigError``."""
    from corral.pipelines.execution.run_dir import MANIFEST

    folder = Path(name)
    if not folder.is_dir():
        return name
    try:
        manifest: dict[str, Json] = msgspec.json.decode(
            (folder / MANIFEST).read_bytes(), type=dict[str, Json]
        )
        return str(manifest["run_id"])
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        raise ConfigError(
            f"{folder} is not a run folder: it has no {MANIFEST} with a run_id",
            hint="Give the id of a run: corral pipeline runs.",
        ) from error


def _warn(file: str, graph: Graph) -> None:
    """Print the linter's findings of a pipeline that may run."""
    from corral.cli.pipeline.files import format_finding
    from corral.pipelines.linter import engine

    for finding in engine.lint(graph):
        echo(format_finding(file, finding), err=True)


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


def _require_engine() -> None:
    from corral.durable.dbos.database import require

    require()


def _require_no_questions(graph: Graph) -> None:
    """A run in memory cannot wait for an answer from elsewhere."""
    from corral.cli.ui.questions import is_interactive
    from corral.pipelines import node_kinds

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
