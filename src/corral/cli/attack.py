"""``corral agents check --attack``: run the attack kit against agents and print tables."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat

import msgspec

from corral.cli.ui.tables import table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import NotInstalled
from corral.run_kwargs import RunKwargs
from corral.system import config
from corral.testing.attack import AttackReport, attack_agent
from corral.testing.attack.report import LEGEND, MARKS
from corral.testing.attack.report import markdown as markdown_tables


@dataclass(frozen=True)
class Selection:
    policies: tuple[str, ...]
    groups: tuple[str, ...]
    program: str | None
    named: tuple[str, ...]
    """Agents named by the user: it is an error if one is not installed. Others are left out."""
    concurrency: int = 1
    """How many agents are attacked at once."""
    sandbox: bool = False
    """They run in corral's sandbox."""


def attackable() -> list[str]:
    """Agents whose model can be scripted."""
    return [each.name for each in config.all_agents() if each.probe is not None]


def attack(names: Sequence[str], selection: Selection, *, as_json: bool, markdown: bool) -> int:
    """Print the results. Returns the exit code: 1 if an enforced cell was broken."""
    reports: list[AttackReport] = []
    for name, report in _attack_all(names, selection):
        if isinstance(report, NotInstalled):
            if name in selection.named:
                raise report
            echo(f"{name}: not run: {report.message}", err=True)
            continue
        reports.append(report)
        if as_json:
            line = {"ok": report.ok, **msgspec.to_builtins(report)}
            echo_json(msgspec.json.encode(line))
        elif markdown:
            _show_failures(report, err=True)
        else:
            _show(report)
        echo(f"{name}: {_summary(report)}", err=markdown or as_json)
    if markdown:
        echo(markdown_tables(reports))
    elif not as_json:
        echo(LEGEND)
    return 0 if reports and all(report.ok for report in reports) else 1


def _attack_all(
    names: Sequence[str], selection: Selection
) -> Iterator[tuple[str, AttackReport | NotInstalled]]:
    """The reports in the order of ``names``. Concurrent attacks run in separate processes,
    because an attack changes the environment of its process."""
    if selection.concurrency == 1 or len(names) == 1:
        yield from ((name, _attack_one(name, selection)) for name in names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        selection.concurrency, mp_context=context, max_tasks_per_child=1
    ) as pool:
        yield from zip(names, pool.map(_attack_one, names, repeat(selection)), strict=True)


def _attack_one(name: str, selection: Selection) -> AttackReport | NotInstalled:
    options: RunKwargs = {"program": selection.program}
    try:
        return asyncio.run(
            attack_agent(
                name,
                policies=selection.policies,
                only=selection.groups,
                sandbox=selection.sandbox,
                options=options,
            )
        )
    except NotInstalled as error:
        return error


def _show(report: AttackReport) -> None:
    rows = [
        (MARKS[c.status], p.policy, c.cell, c.status, c.enforcer or "", f"{c.effects}/{c.tries}")
        for p in report.policies
        for c in p.cells
    ]
    head = ("", "policy", "cell", "", "reported as", "effects")
    echo(table(head, rows))
    for policy in report.policies:
        if policy.refused:
            echo(f"{policy.policy}: refused: {policy.refused}")
    _show_failures(report)


def _show_failures(report: AttackReport, *, err: bool = False) -> None:
    for policy in report.policies:
        if policy.problem:
            echo(f"{report.agent}: {policy.policy}: {policy.problem}", err=err)
        for cell in policy.of("unproven"):
            echo(f"{report.agent}: {policy.policy}: {cell.cell}: not seen to work", err=err)
    for name, tried in report.broken:
        text = f"{name}: {tried.cell}: {tried.group}: {tried.name}: {tried.seen}"
        echo(f"✗ {report.agent}: {text}", err=err)


def _summary(report: AttackReport) -> str:
    attempts = [tried for policy in report.policies for tried in policy.tried]
    made = sum(tried.outcome in ("held", "effect", "not offered") for tried in attempts)
    return f"{made} attempts, {len(report.broken)} broke an enforced cell"
