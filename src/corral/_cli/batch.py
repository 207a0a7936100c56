"""``corral batch``: run one prompt for each task of a file; one line of results per task."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.options import (
    DB,
    EVERYWHERE,
    FAKE,
    QUEUE,
    VERIFICATION,
    PolicyFlags,
    agent_option,
    check_queue,
    count_option,
    limit_texts,
    policy_options,
    read_limits,
    read_options,
    read_prompt,
    run_options,
    script_option,
    task_limit_options,
)
from corral._cli.ui.terminal import echo, echo_json
from corral._cli.verdict import REQUIRE, VerdictRule
from corral._protocol.schema import schema_of
from corral.errors import ConfigError, StorageFailed
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._core.spending import LimitKwargs
    from corral._engine.batch.api import Batch, BatchReport


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
    no_durable: bool
    require: str | None
    as_json: bool
    quiet: bool


@click.command(
    "batch",
    cls=SectionedCommand,
    epilog=examples(
        "corral batch tasks.jsonl --prompt @task.md --output results.jsonl",
        "corral batch --files 'src/**/*.py' --prompt \"Explain {{path}}\" --simulate",
    ),
)
@click.argument("tasks", nargs=-1, type=click.Path())
@option(
    "Prompt",
    "--files GLOB...",
    "Instead of TASKS: a task for each file, with {{path}} and {{content}}.",
    is_rare=True,
)
@option(
    "Prompt",
    "-p --prompt TEMPLATE",
    "With {{field}} for the fields of a task; @FILE reads it from a file.",
    default="{{task}}",
)
@agent_option
@policy_options
@run_options(
    (*EVERYWHERE, *VERIFICATION),
    texts=limit_texts("the complete batch"),
    defaults={"timeout": "1h"},
)
@REQUIRE
@option("Execution", "--name NAME", "The name of the batch.  [default: from the files]")
@count_option("-n --concurrency", "Number of concurrent tasks.", 4)
@count_option(
    "--attempts",
    "Attempts at a task that fails temporarily: network, rate limits.",
    3,
    is_rare=True,
)
@task_limit_options("each task")
@option("Execution", "--retry-failed", "Repeat the tasks that failed.", is_rare=True)
@option(
    "Execution",
    "--accept-changed",
    "If tasks or prompt have changed: run what is changed or new, keep the rest.",
    is_rare=True,
)
@option(
    "Execution",
    "--worktree",
    "Run each task in its own git worktree at HEAD; its work becomes the branch corral/NAME/TASK.",
)
@option(
    "Execution", "--patch", "With --worktree: also put the patch into the result.", is_rare=True
)
@DB
@QUEUE
@option("Execution", "--no-durable", "Run in memory; only --output is stored.", is_rare=True)
@option(
    "Output",
    "-o --output FILE",
    "Where results are written, one JSON line each; the same command continues from"
    " it.  [default: stdout]",
)
@option(
    "Output",
    "--schema FILE",
    "A JSON Schema, as a file, - for stdin, or itself; a task without a value that fits it fails.",
)
@option("Output", "--in-order", "Results in the order of the tasks.", is_rare=True)
@option("Output", "--json as_json", "Print the report as JSON, as the last line on stdout.")
@option("Output", "-q --quiet", "No progress, no report.")
@FAKE
@option("Tests", "--simulate", "Simulate the answers: nothing is spent.", is_rare=True)
def command(tasks: tuple[str, ...], **flags: Unpack[BatchFlags]) -> int:
    """Run one prompt for each task of the file TASKS, or for each file of --files.

    TASKS has one JSON value per line (an object with fields, or a text), or is a .csv with a
    header. A task's id is its field `id`, else its number; with --files it is the path. After a
    crash or Ctrl-C, the same command continues; finished tasks are not repeated.

    \b
    Exit codes: 0 all succeeded · 1 some failed · 2 bad input, nothing was started ·
    8 the budget is spent · 14 some are not verified (--require) · 130 interrupted
    """
    from corral._cli.run_result import read_schema
    from corral._cli.ui.batch_progress import BatchProgress
    from corral._cli.ui.signals import INTERRUPTED, run_cancellable
    from corral._engine.batch import api

    rule = VerdictRule.read(
        {
            "require": flags["require"],
            "receipt": None,
            "until_verified": False,
            "rounds": None,
            "summary": None,
        },
        # Tasks have checks of their own too, so --work and the like may be given without --verify.
        {name: flags.get(name) for name in ("agent", "verify", "scenarios")},
    )
    if flags["no_durable"] and (flags["db"] or flags["queue"]):
        raise ConfigError("--no-durable and --db or --queue are both given")
    check_queue(flags["queue"])
    output = flags["output"]
    progress = BatchProgress(enabled=not flags["quiet"])
    progress.announce_probes()

    def show(result: api.BatchResult, report: BatchReport) -> None:
        if output is None:
            echo_json(api.line_of(result).removesuffix(b"\n"))
        progress.show(result, report)

    prompt = flags["prompt"]
    if prompt.startswith("@"):
        prompt = read_prompt(None, prompt[1:]) or ""
    given, name = _tasks(tasks, prompt, flags)
    batch = api.batch(
        given,
        prompt,
        agent=flags["agent"],
        output=None if flags["schema"] is None else schema_of(read_schema(flags["schema"])),
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
        task=cast("LimitKwargs", read_limits(flags, "task_")),
        on_result=show,
        **read_options(flags),
    )
    batch.collects = False
    batch.restarts_jobs = bool(script_option())  # the scripted model of a killed command is gone
    try:
        report = run_cancellable(batch.run_to_end(), progress)
    except BrokenPipeError:
        raise
    except (StorageFailed, OSError) as error:
        if not batch.report.total or not batch.is_durable:
            raise
        from corral._cli.main import report_error

        code = report_error(error)
        echo(f"  then run the same command again: corral {shlex.join(sys.argv[1:])}", err=True)
        return code
    if report is None:
        _print_interrupted(batch)
        return INTERRUPTED
    if flags["as_json"]:
        line = {"type": "report", **api.as_json(report)}
        echo_json(msgspec.json.encode(line))
    progress.report(report)
    if report.stopped:
        return BUDGET
    if not report.ok:
        return 1
    return rule.finish_batch(report.verified, report.gaps, report.total)


def _print_interrupted(batch: Batch) -> None:
    report = batch.report
    if not report.total:
        echo("corral: interrupted", err=True)
        return
    done = report.succeeded + report.failed
    hint = "run the same command again to continue"
    if batch.runs_on and report.left:
        hint = f"running tasks finish in the background; {hint}"
    if not batch.is_durable and not batch.has_results_file:
        hint = "nothing was stored because there was no --output"
    echo(f"corral: interrupted with {done:,} of {report.total:,} done; {hint}:", err=True)
    echo(f"  corral {shlex.join(sys.argv[1:])}", err=True)
    if batch.is_durable:
        echo(f"  or: corral runs resume {batch.name}", err=True)


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
        if arguments[0] in ("list", "show", "resume", "cancel") and not Path(arguments[0]).exists():
            raise ConfigError(
                f"no file of tasks is called {arguments[0]!r}",
                hint=f"Did you mean corral runs {arguments[0]}?",
            )
        return Path(arguments[0]), flags["name"]
    from corral._engine.batch.tasks import batch_name, find_files
    from corral._pipelines.templates import placeholders

    patterns = (*flags["files"], *arguments)
    found = find_files(patterns, cwd=flags.get("cwd"), content="content" in placeholders(prompt))
    if found.note:
        echo(f"corral: {found.note}", err=True)
    if flags["name"] is None and flags["output"] is None:
        return found.tasks, batch_name(patterns, flags.get("cwd"))
    return found.tasks, flags["name"]
