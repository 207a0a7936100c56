"""``corral batch``: run one prompt for each task of a file; one line of results per task."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from corral.cli.garbage import enable_gc
from corral.cli.options import (
    DB,
    QUEUE,
    PolicyFlags,
    agent_option,
    count_option,
    policy_options,
    read_prompt,
)
from corral.cli.run_options import EVERYWHERE, read_options, run_options
from corral.cli.sections import SectionedCommand, option
from corral.cli.ui.terminal import echo, echo_json
from corral.core.nesting import decode_json
from corral.errors import ConfigError, StorageFailed
from corral.run_kwargs import RunKwargs
from corral.system import threads
from corral.values import JsonObject, is_object

if TYPE_CHECKING:
    from corral.cli.ui.batch_progress import Progress
    from corral.engine.batch.api import Batch, BatchReport

INTERRUPTED = 130
BUDGET = 8


class BatchFlags(PolicyFlags, RunKwargs):
    """The options of the command."""

    files: tuple[str, ...]
    prompt: str
    agent: str | None
    output: str | None
    name: str | None
    concurrency: int
    schema: str | None
    in_order: bool
    retry_failed: bool
    accept_changed: bool
    attempts: int
    worktree: bool
    patch: bool
    simulate: bool
    db: str | None
    queue: str | None
    task_max_cost: float | None
    task_max_total_tokens: int | None
    task_max_calls: int | None
    no_durable: bool
    as_json: bool
    quiet: bool


@click.command("batch", cls=SectionedCommand)
@click.argument("tasks", nargs=-1, type=click.Path())
@option("Prompt", "--files", multiple=True, metavar="GLOB", help="Instead of TASKS: a task for each"
        " file, with {{path}} and {{content}} (repeatable).")  # fmt: skip
@option(
    "Prompt",
    "-p",
    "--prompt",
    default="{{task}}",
    show_default=True,
    metavar="TEMPLATE",
    help="With {{field}} for the fields of a task; @FILE reads it from a file.",
)
@agent_option
@policy_options
@run_options(
    EVERYWHERE,
    texts={
        "max_cost": "The most that the model calls of the complete batch may cost.",
        "max_total_tokens": "The most tokens that the complete batch may use.",
        "max_calls": "The most model calls of the complete batch.",
    },
    defaults={"timeout": "1h"},
)
@option(
    "Execution", "--name", metavar="NAME", help="The name of the batch.  [default: from the files]"
)
@count_option("-n", "--concurrency", default=4, help="Number of concurrent tasks.")
@count_option(
    "--attempts", default=3, help="Attempts at a task that fails temporarily: network, rate limits."
)
@option("Limits", "--task-max-cost", type=float, metavar="USD", help="Within that: the most that"
        " one task may cost.")  # fmt: skip
@option("Limits", "--task-max-total-tokens", type=int, metavar="N", help="Within that: the most"
        " tokens of one task.")  # fmt: skip
@option("Limits", "--task-max-calls", type=int, metavar="N", help="Within that: the most model"
        " calls of one task.")  # fmt: skip
@option("Execution", "--retry-failed", is_flag=True, help="Repeat the tasks that failed.")
@option("Execution", "--accept-changed", is_flag=True, help="If tasks or prompt have changed: run"
        " what is changed or new, keep the rest.")  # fmt: skip
@option("Execution", "--worktree", is_flag=True, help="Run each task in its own git worktree at"
        " HEAD; its work becomes the branch corral/NAME/TASK.")  # fmt: skip
@option("Execution", "--patch", is_flag=True, help="With --worktree: also put the patch into the"
        " result.")  # fmt: skip
@DB
@QUEUE
@option("Execution", "--no-durable", is_flag=True, help="Run in memory; only --output is stored.")
@option("Output", "-o", "--output", type=click.Path(), metavar="FILE", help="Where results are"
        " written, one JSON line each; the same command continues from it."
        "  [default: stdout]")  # fmt: skip
@option("Output", "--schema", metavar="FILE", help="A JSON Schema; a task without a value that fits"
        " it fails.")  # fmt: skip
@option("Output", "--in-order", is_flag=True, help="Results in the order of the tasks.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the report as JSON, as the last"
        " line on stdout.")  # fmt: skip
@option("Output", "-q", "--quiet", is_flag=True, help="No progress, no report.")
@option("Tests", "--simulate", is_flag=True, help="Simulate the answers: nothing is spent.")
def command(tasks: tuple[str, ...], **flags: Unpack[BatchFlags]) -> int:
    """Run one prompt for each task of the file TASKS, or for each file of --files.

    TASKS has one JSON value per line (an object with fields, or a text), or is a .csv with a
    header. A task's id is its field `id`, else its number; with --files it is the path. After a
    crash or Ctrl-C, the same command continues; finished tasks are not repeated.

    \b
    Exit codes: 0 all succeeded · 1 some failed · 2 bad input, nothing was started ·
    8 the budget is spent · 130 interrupted
    """
    from corral.cli.ui.batch_progress import Progress
    from corral.engine.batch import api
    from corral.engine.batch.command_line import BatchCommand

    if flags["no_durable"] and (flags["db"] or flags["queue"]):
        raise ConfigError("--no-durable and --db or --queue are both given")
    output = flags["output"]
    progress = Progress(enabled=not flags["quiet"])

    def show(result: api.BatchResult, report: BatchReport) -> None:
        if output is None:
            echo_json(api.line_of(result).removesuffix(b"\n"))
        progress.show(result, report)

    prompt = _prompt(flags["prompt"])
    given, name = _tasks(tasks, prompt, flags)
    batch = api.batch(
        given,
        prompt,
        agent=flags["agent"],
        output=_schema(flags["schema"]),
        results=output,
        name=name,
        concurrency=flags["concurrency"],
        in_order=flags["in_order"],
        retry_failed=flags["retry_failed"],
        accept_changed=flags["accept_changed"],
        attempts=flags["attempts"],
        worktree=flags["worktree"],
        patch=flags["patch"],
        simulate=flags["simulate"],
        durable=not flags["no_durable"],
        db=flags["db"],
        queue=flags["queue"],
        task_max_cost=flags["task_max_cost"],
        task_max_total_tokens=flags["task_max_total_tokens"],
        task_max_calls=flags["task_max_calls"],
        on_result=show,
        **read_options(flags),
    )
    batch.command = BatchCommand.of(sys.argv[1:], os.getcwd())
    try:
        report = threads.run_event_loop(_run_to_end(batch, progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _interrupted(batch)
    except StorageFailed as error:
        if not batch.report.total or not batch.is_durable:
            raise
        from shlex import join

        echo(f"corral: {error}", err=True)
        echo(f"  then run the same command again: corral {join(sys.argv[1:])}", err=True)
        return error.cli_exit
    if flags["as_json"]:
        line = {"type": "report", **api.as_json(report)}
        echo_json(msgspec.json.encode(line))
    progress.report(report)
    if report.stopped:
        return BUDGET
    return 0 if report.ok else 1


async def _run_to_end(batch: Batch, progress: Progress) -> BatchReport:
    from corral.cli.ui.signals import signals

    batch.collects = False
    enable_gc()
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
    if batch.is_durable:
        echo(f"  or: corral batches resume {batch.name}", err=True)
    return INTERRUPTED


def _tasks(
    arguments: tuple[str, ...], prompt: str, flags: BatchFlags
) -> tuple[Path | list[dict[str, str]], str | None]:
    """The file of tasks, or a task for each file of ``--files``; and the name of the batch. A
    pattern that the shell has expanded arrives as several arguments."""
    if not flags["files"]:
        if len(arguments) != 1:
            raise ConfigError(
                f"give one file of tasks, got {len(arguments)}",
                hint="For a task for each file: --files 'src/**/*.py'",
            )
        return Path(arguments[0]), flags["name"]
    from corral.engine.batch.files import batch_name, find_files
    from corral.pipelines.templates import placeholders

    patterns = (*flags["files"], *arguments)
    found = find_files(patterns, cwd=flags.get("cwd"), content="content" in placeholders(prompt))
    if found.note:
        echo(f"corral: {found.note}", err=True)
    if flags["name"] is None and flags["output"] is None:
        return found.tasks, batch_name(patterns, flags.get("cwd"))
    return found.tasks, flags["name"]


def _prompt(text: str) -> str:
    if not text.startswith("@"):
        return text
    return read_prompt(None, text[1:]) or ""


def _schema(path: str | None) -> JsonObject | None:
    if path is None:
        return None
    try:
        schema = decode_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not is_object(schema):
        raise ConfigError(f"{path} is not a JSON Schema: it must be an object")
    return schema
