"""``corral compare``: the same tasks for several agents, and how often each of them passes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click
import msgspec

from corral._cli.command_types import (
    SectionedGroup,
    examples,
    option,
    plain_option,
)
from corral._cli.options import (
    AGENTS,
    DB,
    EVERYWHERE,
    FAKE,
    VERIFICATION,
    PolicyFlags,
    check_output_flags,
    count_option,
    policy_options,
    read_agents,
    read_options,
    read_prompt_and_stdin,
    run_argument,
    run_options,
    script_option,
)
from corral._cli.run_result import read_schema
from corral._cli.ui.terminal import echo, echo_err, echo_json
from corral.errors import ConfigError, PromptError
from corral.run_kwargs import RunKwargs
from corral.values import number_or_none

if TYPE_CHECKING:
    from corral._cli.ui.compare_report import CompareProgress
    from corral._comparison.api import Comparison
    from corral._comparison.summary import ComparisonSummary

INCOMPLETE, BUDGET = 1, 8
SHARED = tuple(name for name in EVERYWHERE if name != "program")
"""The options of agents. Each agent has its own program: corral.toml can name it."""
ID = run_argument("comparison", metavar="ID", completed="comparisons")
MEMORY = option(
    "Execution", "--no-durable", "Run in this process; results are stored.", is_rare=True
)
OUTPUT = option(
    "Output", "--output DIR", "At the end, write the results to DIR as a job folder of harbor."
)


class CompareFlags(PolicyFlags, RunKwargs):
    """The options of the command."""

    file: str | None
    agent: tuple[str, ...]
    repeat: int
    tests: str | None
    include_uncommitted: bool
    trust_tasks: bool
    name: str | None
    concurrency: int
    attempts: int
    db: str | None
    no_durable: bool
    schema: str | None
    output: str | None
    as_json: bool
    quiet: bool


class Shown(NamedTuple):
    """What is printed and written at the end."""

    as_json: bool
    quiet: bool
    output: str | None


@click.command(
    "compare",
    cls=SectionedGroup,
    epilog=examples(
        'corral compare "Fix the bug" --agent claude,codex --verify "pytest -q"',
        "corral compare tasks.jsonl --agent claude,codex --repeat 3 --max-cost 10",
    ),
)
@click.argument("prompt", required=False, metavar="[PROMPT|TASKS]")
@option("Prompt", "-f --file FILE", "Read the prompt from this file; - is stdin.", is_rare=True)
@AGENTS
@policy_options
@run_options(
    (*SHARED, "images", "attachments", *VERIFICATION),
    texts={
        "max_cost": "A limit on the cost of the complete comparison; when it is spent, no"
        " further attempt is started.",
        "timeout": "Time for each attempt; after that it is verified as it is.",
        "verify": "Run this when the agent has ended, in a clean tree of what it left; exit code 0"
        " passes.",
        "verify_timeout": "Time for --verify; an attempt that exceeds it has failed.",
    },
    defaults={"timeout": "1h"},
)
@option("Execution", "--repeat N", "Attempts by each agent at each task.", type=int, default=1)
@option(
    "Execution",
    "--tests PATH",
    "Copy this file or folder there before --verify; it is not there while the agent works.",
)
@option(
    "Execution",
    "--include-uncommitted",
    "Agents start with the changes that are not committed.",
    is_rare=True,
)
@option(
    "Execution",
    "--trust-tasks",
    "The tasks are your own: their commands run without a sandbox, with the network"
    " and time that they ask for.",
    is_rare=True,
)
@option(
    "Execution",
    "--name NAME",
    "The name of the comparison; the same command continues it.  [default: a new one]",
)
@count_option("-n --concurrency", "Number of concurrent attempts.", 4)
@count_option(
    "--attempts",
    "Starts of an attempt that fails temporarily: network, rate limits.",
    3,
    is_rare=True,
)
@DB
@MEMORY
@OUTPUT
@option(
    "Output",
    "--schema FILE",
    "Answers that fit this JSON Schema: a file, - for stdin, or the schema itself.",
)
@option("Output", "--json as_json", "Print the results as one JSON object.")
@option("Output", "-q --quiet", "Print only the answers or the table.")
@FAKE
def command(prompt: str | None, **flags: Unpack[CompareFlags]) -> int:
    """Let several agents do the same task and compare the results.

    PROMPT is for all agents. TASKS is a file of tasks (.jsonl, .csv, .toml). Each
    attempt works in its own git worktree at HEAD. --verify decides whether it passes; without it,
    an attempt passes if the agent's turn succeeds. Pass rates have 95 % intervals. An attempt that
    says nothing about the agent (network, rate limit, not installed) is missing, not failed.

    \b
    corral runs show ID                  Show the results.
    corral compare diff ID [TASK]        Show the changes of the attempts side by side.
    corral compare apply ID ATTEMPT      Apply the changes of an attempt to your files.
    corral runs resume ID                Continue; ended attempts are not repeated.
    corral compare export ID DIR         Write a job folder of harbor.

    \b
    Exit codes: 0 every attempt has a verdict · 1 some are missing · 2 bad input, nothing was
    started · 8 the budget is spent · 130 interrupted
    """
    from corral._comparison import api
    from corral._comparison.tasks import is_path

    progress = make_progress(quiet=flags["quiet"], as_json=flags["as_json"])
    if flags["repeat"] < 1:
        raise ConfigError(f"--repeat must be at least 1, got: {flags['repeat']}")
    has_tasks = prompt is not None and flags["file"] is None and is_path(prompt)
    agents = read_agents(flags["agent"])
    options = read_options(flags)
    checks = (options.get("verify"), flags["tests"], options.get("scenarios"))
    is_verified = has_tasks or any(checks)
    if len(agents) < 2 and not (agents and is_verified):
        raise ConfigError(
            "compare needs two or more different agents",
            hint="Name them: corral compare --agent AGENT,AGENT PROMPT."
            " With --verify one agent is enough.",
        )
    if prompt is not None and has_tasks:
        text: str | Path | None = Path(prompt)
    else:
        text = read_prompt_and_stdin(prompt, flags["file"])
    if text is None or not str(text).strip():
        raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
    comparison = api.compare(
        text,
        agents,
        repeat=flags["repeat"],
        tests=flags["tests"],
        include_uncommitted=flags["include_uncommitted"],
        trust_tasks=flags["trust_tasks"],
        output=read_schema(flags["schema"]) if flags["schema"] is not None else None,
        name=flags["name"],
        concurrency=flags["concurrency"],
        attempts=flags["attempts"],
        durable=not flags["no_durable"],
        db=flags["db"],
        on_result=progress.show,
        **options,
    )
    shown = Shown(as_json=flags["as_json"], quiet=flags["quiet"], output=flags["output"])
    return run_and_print(comparison, progress, shown)


def make_progress(*, quiet: bool, as_json: bool) -> CompareProgress:
    check_output_flags(as_json=as_json, quiet=quiet)
    from corral._cli.ui.compare_report import CompareProgress

    return CompareProgress(enabled=not quiet and not as_json, answers=not as_json)


def run_and_print(comparison: Comparison, progress: CompareProgress, shown: Shown) -> int:
    from corral._cli.ui.signals import INTERRUPTED, run_cancellable

    async def run_to_end() -> ComparisonSummary:
        progress.begin(await comparison.prepare())
        with progress:
            return await comparison.run_to_end()

    comparison.restarts_jobs = bool(script_option())  # a killed command's scripted model is gone
    found = run_cancellable(run_to_end())
    if found is None:
        plan = comparison.plan
        command = "" if plan is None else f"corral runs resume {plan.name}{script_option()}"
        echo_err("corral: interrupted" + (f"; continue: {command}" * bool(command)))
        return INTERRUPTED
    if not (progress.prints_answers and shown.quiet):
        _print(found, as_json=shown.as_json, err=progress.prints_answers)
    if shown.output is not None:
        _export(found, shown.output)
    if comparison.batch is not None and comparison.batch.report.stopped:
        plan = comparison.plan
        limit = number_or_none(plan.options.get("max_cost")) if plan is not None else None
        larger = f" --max-cost {2 * limit:g}" if limit else ""
        echo_err(
            "corral: the budget is spent; to continue: corral runs resume"
            f" {found.id}{larger}{script_option()}"
        )
        return BUDGET
    return 0 if found.is_complete else INCOMPLETE


def _print(found: ComparisonSummary, *, as_json: bool, err: bool = False) -> None:
    """``err``: the table goes to stderr, because stdout has the answers."""
    if as_json:
        echo_json(msgspec.json.encode(found).decode())
        return
    from corral._comparison.result_lines import report_lines

    for line in report_lines(found, rates=not err):
        echo(line, err=err)


def _export(found: ComparisonSummary, output: str) -> None:
    from corral._comparison import harbor_job

    place = harbor_job.write(found.id, Path(output))
    echo_err(f"corral: written to {place}")


@command.command("diff")
@ID
@click.argument("which", nargs=-1, metavar="[TASK|ATTEMPT]...")
def diff(name: str, which: tuple[str, ...]) -> None:
    """Show the changes of attempts side by side: those of a TASK, or the ATTEMPTs that are named.

    Without a name, all attempts of the first task are shown."""
    from shutil import get_terminal_size

    from corral._cli.ui.compare_report import side_by_side
    from corral._comparison import existing
    from corral._comparison.summary import summary

    found = summary(name)
    rows = [row for task in found.tasks if task.task in which for row in task.attempts]
    if not which:
        rows = [*found.tasks[0].attempts]
    elif not rows:
        rows = [existing.find_attempt(found, text) for text in which]
    columns = [(f"{row.id} ({row.verdict})", existing.patch_of(row)) for row in rows]
    for line in side_by_side(columns, get_terminal_size((160, 24)).columns):
        echo(line)


@command.command("apply")
@ID
@click.argument("attempt", metavar="ATTEMPT")
@plain_option("--check", "Only check whether it is possible.")
def apply(name: str, attempt: str, check: bool) -> None:
    """Apply the changes of ATTEMPT to your files, as they are now.

    ATTEMPT is the id of an attempt, or an agent or task that has only one. Changes are merged with
    yours; if that is not possible, nothing is changed. Nothing is committed."""
    from corral._comparison import existing

    row, files = existing.apply(name, attempt, check=check)
    if not files:
        echo(f"{row.id}: your files have these changes already")
        return
    what = "can be applied" if check else "applied"
    echo(f"{row.id} {what}: {', '.join(files[:20])}{' …' if len(files) > 20 else ''}")


@command.command("export")
@ID
@click.argument("folder", type=click.Path(), metavar="DIR")
def export(name: str, folder: str) -> None:
    """Write comparison ID to DIR as a job folder of harbor."""
    from corral._comparison.summary import summary

    _export(summary(name), folder)
