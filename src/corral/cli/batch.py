"""``corral batch``: run one prompt for each task of a file; one line of results per task."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from corral.agents.registry import DEFAULT_AGENT
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, StorageFailed
from corral.nesting import decode_json

if TYPE_CHECKING:
    from corral.cli.ui.batch_progress import Progress
    from corral.durable.batch.api import Batch, BatchReport

INTERRUPTED = 130
BUDGET = 8


@click.command("batch")
@click.argument("tasks", type=click.Path())
@click.option(
    "-p",
    "--prompt",
    default="{{task}}",
    show_default=True,
    metavar="TEMPLATE",
    help="With {{field}} for the fields of a task; @FILE reads it from a file.",
)
@click.option(
    "-a",
    "--agent",
    help=f"The agent, or any command that speaks ACP.  [default: {DEFAULT_AGENT}]",
)
@click.option("-m", "--model", help="The model; vendor:model runs the built-in agent on it.")
@click.option("-o", "--output", metavar="FILE", help="Where results are written, one JSON line"
              " each; the same command continues from it.  [default: stdout]")  # fmt: skip
@click.option("--name", help="The name of the batch.  [default: from the files]")
@click.option(
    "-n",
    "--concurrency",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="N",
    help="Number of concurrent tasks.",
)
@click.option("--schema", metavar="FILE", help="A JSON Schema; a task without a value that fits"
              " it fails.")  # fmt: skip
@click.option("--in-order", is_flag=True, help="Results in the order of the tasks.")
@click.option("--retry-failed", is_flag=True, help="Repeat the tasks that failed.")
@click.option("--accept-changed", is_flag=True, help="If tasks or prompt have changed: run what"
              " is changed or new, keep the rest.")  # fmt: skip
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Attempts at a task that fails temporarily: network, rate limits.",
)
@click.option("--worktree", is_flag=True, help="Run each task in its own git worktree at HEAD;"
              " its work becomes the branch corral/NAME/TASK.")  # fmt: skip
@click.option("--patch", is_flag=True, help="With --worktree: also put the patch into the result.")
@click.option("-C", "--cwd", help="The working directory.  [default: here]")
@click.option(
    "--approve",
    type=click.Choice(["reads", "edits", "all"]),
    help="What the agents may do; anything else is denied.",
)
@click.option("--yolo", is_flag=True, help="Short for --approve all.")
@click.option("--policy", "policy_file", type=click.Path(), help="A policy file (TOML).")
@click.option(
    "--allow-tool", multiple=True, metavar="NAME", help="Allow only this tool (repeatable)."
)
@click.option(
    "--deny-tool", multiple=True, metavar="NAME", help="Never allow this tool (repeatable)."
)
@click.option("--timeout", type=float, help="Seconds for each task.  [default: 3600]")
@click.option("--max-turns", type=int, help="Maximum number of model calls per task.")
@click.option("--max-budget-usd", type=float, metavar="USD", help="For the complete batch; when"
              " it is spent, no further task is started.")  # fmt: skip
@click.option("--system-prompt", help="Added to the system prompt.")
@click.option("--label", help="A text in every event and in every result.")
@click.option("--program", help="The agent's program.  [default: searched]")
@click.option("--env", multiple=True, metavar="NAME", help="Pass this variable on (repeatable).")
@click.option("--simulate", is_flag=True, help="Simulate the answers: nothing is spent.")
@click.option("--db", metavar="URL", help="The database: a file, or postgresql://user@"
              "host/name.  [default: CORRAL_DB, else a file in corral's home]")  # fmt: skip
@click.option("--queue", metavar="NAME", help="Let the workers of this queue do the work.")
@click.option("--no-durable", is_flag=True, help="Run in memory; only --output is"
              " stored.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, as the last line"
              " on stdout.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="No progress, no report.")
def command(tasks: str, **given: Any) -> int:
    """Run one prompt for each task of the file TASKS.

    TASKS has one JSON value per line (an object with fields, or a text), or is a .csv with a
    header. A task's id is its field `id`, else its number. After a crash or Ctrl-C, the same
    command continues; finished tasks are not repeated.

    \b
    Exit codes: 0 all succeeded · 1 some failed · 2 bad input, nothing was started ·
    8 the budget is spent · 130 interrupted
    """
    from corral.cli.ui.batch_progress import Progress
    from corral.durable.batch import api

    if given["no_durable"] and (given["db"] or given["queue"]):
        raise ConfigError("--no-durable and --db or --queue are both given")
    output = given["output"]
    progress = Progress(enabled=not given["quiet"])

    def show(result: api.BatchResult, report: BatchReport) -> None:
        if output is None:
            echo_json(api.line_of(result).removesuffix(b"\n"))
        progress.show(result, report)

    batch = api.batch(
        Path(tasks),
        _prompt(given["prompt"]),
        agent=given["agent"],
        output=_schema(given["schema"]),
        results=output,
        name=given["name"],
        concurrency=given["concurrency"],
        in_order=given["in_order"],
        retry_failed=given["retry_failed"],
        accept_changed=given["accept_changed"],
        attempts=given["attempts"],
        worktree=given["worktree"],
        patch=given["patch"],
        simulate=given["simulate"],
        durable=not given["no_durable"],
        db=given["db"],
        queue=given["queue"],
        on_result=show,
        **_options(given),
    )
    batch.collects = False
    gc.enable()  # loading is done; the run may be long
    try:
        report = asyncio.run(_run_to_end(batch, progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _interrupted(batch)
    except StorageFailed as error:
        if not batch.report.total or not batch.is_durable:
            raise
        from shlex import join

        echo(f"corral: {error}", err=True)
        echo(f"  then run the same command again: corral {join(sys.argv[1:])}", err=True)
        return error.cli_exit
    if given["as_json"]:
        line = {"type": "report", **api.as_json(report)}
        echo_json(msgspec.json.encode(line))
    progress.report(report)
    if report.stopped:
        return BUDGET
    return 0 if report.ok else 1


async def _run_to_end(batch: Batch, progress: Progress) -> BatchReport:
    from corral.cli.ui.signals import signals

    task = asyncio.ensure_future(batch.run_to_end())

    def end() -> None:
        task.cancel()

    with signals(end), progress:
        return await task


def _interrupted(batch: Batch) -> int:
    report = batch.report
    if not report.total:
        echo("corral: interrupted", err=True)
        return INTERRUPTED
    done = report.succeeded + report.failed
    hint = "run the same command again to continue"
    if batch.runs_on and report.left:
        hint = f"running tasks finish in the background; {hint}"
    if not batch.is_durable and not batch.has_results_file:
        hint = "nothing was stored because there was no --output"
    echo(f"corral: interrupted with {done:,} of {report.total:,} done; {hint}:", err=True)
    from shlex import join

    echo(f"  corral {join(sys.argv[1:])}", err=True)
    return INTERRUPTED


def _options(given: dict[str, Any]) -> dict[str, Any]:
    from corral.cli.run_options import choose_policy

    chosen: dict[str, Any] = {
        "cwd": given["cwd"],
        "model": given["model"],
        "timeout": given["timeout"],
        "max_turns": given["max_turns"],
        "max_budget_usd": given["max_budget_usd"],
        "system_prompt": given["system_prompt"],
        "program": given["program"],
        "label": given["label"],
        "pass_env": list(given["env"]) or None,
        "policy": choose_policy(given),
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _prompt(given: str) -> str:
    from corral.cli.prompt_input import read_prompt

    if not given.startswith("@"):
        return given
    return read_prompt(None, given[1:]) or ""


def _schema(path: str | None) -> object:
    if path is None:
        return None
    try:
        schema: object = decode_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"{path} is not a JSON Schema: it must be an object")
    return cast("object", schema)
