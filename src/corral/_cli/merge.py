"""``corral merge`` merges finished branches behind a gate; ``corral merges`` changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.options import (
    EVERYWHERE,
    FAKE,
    PolicyFlags,
    completing,
    limit_texts,
    policy_options,
    read_options,
    resolve_last,
    run_options,
)
from corral._cli.ui.tables import format_cost
from corral._cli.ui.terminal import echo, echo_err, echo_json
from corral._core.terminal_text import counted, one_line, visible
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._merging.api import MergeReport
    from corral._merging.queue import MergeEntry, MergeQueue

MARKS = {"merged": "✓", "failed": "✗", "owner": "?"}


class MergeFlags(PolicyFlags, RunKwargs):
    """The options of the command."""

    into: str
    gate: tuple[str, ...]
    gate_timeout: float
    gate_sandbox: str | None
    gate_env: tuple[str, ...]
    batch: str | None
    rounds: int
    agent: str | None
    dry_run: bool
    wait: bool
    as_json: bool
    quiet: bool


@click.command(
    "merge",
    cls=SectionedCommand,
    epilog=examples(
        'corral merge --batch nightly --into main --gate "make test"',
        "corral merge feature-1 'spike/*' --into main --gate \"pytest -q\"",
    ),
)
@click.argument("branches", nargs=-1, metavar="[BRANCH]...")
@option("Execution", "--into BRANCH", "The branch that they are merged into.", required=True)
@option("Execution", "--batch NAME", "The branches of this batch (or last), too.")
@option(
    "Execution",
    "--gate COMMAND...",
    "A command that must succeed before the branch is merged. It is stored with the queue.",
)
@option("Execution", "--gate-timeout DURATION", "For each command.", default="30m", is_rare=True)
@option(
    "Execution",
    "--gate-sandbox",
    "Run the gate in a sandbox without a network.",
    type=click.Choice(("auto", "require")),
    is_rare=True,
)
@option("Execution", "--gate-env NAME...", "A variable that the gate sees.", is_rare=True)
@option(
    "Execution",
    "--wait",
    "If another process merges this queue, wait until the branches have left it.",
)
@option("Execution", "--dry-run", "Tell what would conflict; change nothing, run no gate.")
@option(
    "Agent",
    "-a --agent NAME",
    "The agent that is asked about branches that no session made.",
    shell_complete=completing("agents"),
)
@option(
    "Agent",
    "--rounds N",
    "How often the session that made a branch is asked to repair it.",
    type=click.IntRange(0),
    default=2,
)
@policy_options
@run_options(EVERYWHERE, texts=limit_texts("each session that is asked"))
@option("Output", "--json as_json", "Print the report as JSON.")
@option("Output", "-q --quiet", "No progress.")
@FAKE
def command(branches: tuple[str, ...], **flags: Unpack[MergeFlags]) -> int:
    """Add each BRANCH to the merge queue of --into, and merge all that is queued.

    BRANCH is a name or a quoted pattern, such as 'corral/nightly/*'. Without one, what was queued
    before is continued. Each branch is put on the tip as one commit; if the gate succeeds in a
    clean worktree, --into is moved to it. At a conflict or a failed gate, the session that made the
    branch is asked to repair it, and the branch is queued again. A branch that fails stays as it
    is. Your folder is not touched; at the end, a checkout of --into without changes is moved
    forward.

    \b
    Exit codes: 0 all merged, or added to the queue that another process merges · 1 some failed ·
    2 bad input, or the gate fails on --into itself · 130 interrupted: call it again to continue
    """
    from corral._cli.ui.signals import INTERRUPTED, run_cancellable
    from corral._merging import api

    batch = flags["batch"]

    report = run_cancellable(
        api.run(
            branches,
            into=flags["into"],
            gates=flags["gate"],
            batch=None if batch is None else resolve_last(batch, "batch"),
            rounds=flags["rounds"],
            gate_timeout=flags["gate_timeout"],
            gate_sandbox=flags["gate_sandbox"],
            gate_env=flags["gate_env"],
            agent=flags["agent"],
            dry_run=flags["dry_run"],
            wait=flags["wait"],
            on_entry=printer(quiet=flags["quiet"]),
            **read_options(flags),
        )
    )
    if report is None:
        echo_err(f"corral: interrupted; continue with: corral merge --into {flags['into']}")
        return INTERRUPTED
    print_report(report, as_json=flags["as_json"], is_trial=flags["dry_run"])
    return 0 if report.ok else 1


def to_dict(report: MergeReport) -> dict[str, object]:
    counts = {"merged": report.merged, "failed": report.failed, "cost_usd": report.cost_usd}
    return {"type": "report", **msgspec.to_builtins(report), **counts}


def printer(*, quiet: bool) -> Callable[[MergeEntry], None]:
    """Prints each entry that changes."""

    def show(entry: MergeEntry) -> None:
        if not quiet:
            echo_err(f"{MARKS.get(entry.state, '·')} {_line(entry)}")

    return show


def print_report(report: MergeReport, *, as_json: bool, is_trial: bool = False) -> None:
    if as_json:
        echo_json(msgspec.json.encode(to_dict(report)))
        return
    if is_trial:
        for entry in report.entries:
            echo(f"{MARKS[entry.state]} {_line(entry)}")
        return
    if report.elsewhere:
        waiting = sum(entry.is_open for entry in report.entries)
        echo(f"another process merges into {report.into}; {counted(waiting, 'branch')} wait there")
        return
    spent = f" · {format_cost(report.cost_usd)}" if report.cost_usd else ""
    if report.entries:
        echo(f"{report.merged} merged into {report.into}, {report.failed} failed{spent}")
    else:
        echo(f"nothing is queued for {report.into}")
    if report.pending:
        echo(visible(report.pending))


def _line(entry: MergeEntry) -> str:
    reason = f": {one_line(entry.reason)}" if entry.reason else ""
    return f"{visible(entry.branch)} {entry.state}{reason}"


@click.group("merges")
def merges() -> None:
    """Change merge queues.

    `corral merge` adds to one and merges.
    """


@merges.command("remove")
@click.argument("name", metavar="QUEUE")
@click.argument("branches", nargs=-1, required=True, metavar="BRANCH...")
def remove_branches(name: str, branches: tuple[str, ...]) -> None:
    """Take each BRANCH out of QUEUE, so that it is not merged. The branch itself stays.

    QUEUE is its id, a unique beginning of one, or 'last'.
    """
    from corral._merging.api import remove

    found = _find(name)
    for entry in remove(branches, into=found.into, cwd=found.repository):
        echo(_line(entry))


def _find(name: str) -> MergeQueue:
    from corral._runs import lookup, merge_runs

    return merge_runs.read(lookup.find(name, kinds=("merge",)))
