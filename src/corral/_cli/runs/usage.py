"""``corral runs usage``: what runs have used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from corral._cli.command_types import examples, plain_option
from corral._cli.options import JSON, moment
from corral._cli.ui.tables import format_count, table
from corral._cli.ui.terminal import echo, echo_json
from corral._core.spending import dollars
from corral._core.terminal_text import counted
from corral._metering.turn_usage import By
from corral._runs import verbs
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._metering.turn_usage import UsageSum

_LONGEST = 60


@click.command(
    "usage",
    epilog=examples(
        "corral runs usage --by model --since 30d", "corral runs usage --by project --json"
    ),
)
@plain_option("--by", "What each line is.", type=click.Choice(get_args(By)), default="day")
@plain_option("--since AGE", "Only turns since then: 2h, 7d, or 2026-11-30.")
@plain_option("--until AGE", "Only turns before then: 2h, 7d, or 2026-11-30.")
@plain_option("-a --agent TEXT", "Only with this agent.")
@plain_option("-m --model TEXT", "Only models whose name contains this.")
@plain_option("-C --project DIR", "Only of the project that contains this folder.")
@plain_option("--run RUN", "Only this run, with its parts.")
@JSON
def command(
    *,
    by: By,
    since: str | None,
    until: str | None,
    agent: str | None,
    model: str | None,
    project: str | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Show what runs have used: tokens and cost.

    A cost is metered (corral counted the model calls), reported by the agent, or computed from
    prices. Turns whose cost is not known are counted, and are not in the sum. A scripted model
    costs nothing.
    """
    start = None if since is None else moment("--since", since)
    end = None if until is None else moment("--until", until)
    if start is not None and end is not None and start >= end:
        raise ConfigError("--since is not before --until")
    found = asyncio.run(
        verbs.usage(
            by=by,
            since=start,
            until=end,
            agent=agent,
            model=model,
            project=project,
            run=run,
        )
    )
    if as_json:
        echo_json(msgspec.json.encode(found))
        return
    head = (by, "runs", "turns", "calls", "input", "cached", "output", "cost", "source")
    rows = [*found.rows, found.total] if len(found.rows) > 1 else found.rows
    echo(table(head, [_cells(row) for row in rows]))
    total = found.total
    if total.turns_without_cost:
        echo(f"The cost of {total.turns_without_cost:,} of {total.turns:,} turns is not known.")
    if total.turns_partial:
        echo(f"Partial: {counted(total.turns_partial, 'turn')}; more may be billed.")


def _cells(row: UsageSum) -> tuple[str, ...]:
    # With + if there is more: not known, or partial.
    more = "+" if row.turns_without_cost or row.turns_partial else ""
    cost = "unknown" if row.cost_usd is None else f"{dollars(row.cost_usd)}{more}"
    counts = (row.usage.input, row.usage.cache_read, row.usage.output)
    return (
        row.key[-_LONGEST:],
        f"{row.sessions:,}",
        f"{row.turns:,}",
        format_count(row.calls),
        *map(format_count, counts),
        cost,
        ", ".join(sorted(row.cost_by_source)) or "unknown",
    )
