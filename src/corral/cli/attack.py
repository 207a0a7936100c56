"""``corral agents check --attack``: the attack kit against agents, as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from corral.cli.ui.tables import table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import NotInstalled
from corral.system import config
from corral.testing.attack import AttackReport, attack_agent
from corral.testing.attack.report import LEGEND, MARKS
from corral.testing.attack.report import markdown as drawn


@dataclass(frozen=True)
class Chosen:
    policies: tuple[str, ...]
    groups: tuple[str, ...]
    program: str | None
    named: tuple[str, ...]
    """Agents that must be there: the others are left out where they are not installed."""


def attackable() -> list[str]:
    """Agents whose model can be scripted."""
    return [each.name for each in config.every_agent() if each.probe is not None]


def attack(names: Sequence[str], chosen: Chosen, *, as_json: bool, markdown: bool) -> int:
    """Print what was seen; 1 where an enforced cell was broken."""
    options = {"program": chosen.program} if chosen.program else {}
    reports: list[AttackReport] = []
    for name in names:
        try:
            report = asyncio.run(
                attack_agent(name, policies=chosen.policies, only=chosen.groups, options=options)
            )
        except NotInstalled as error:
            if name in chosen.named:
                raise
            echo(f"{name}: not run: {error.message}", err=True)
            continue
        reports.append(report)
        if as_json:
            line = {"ok": report.ok, **msgspec.to_builtins(report)}
            echo_json(msgspec.json.encode(line))
        elif not markdown:
            _show(report)
        echo(f"{name}: {_summary(report)}", err=markdown or as_json)
    if markdown:
        echo(drawn(reports))
    elif not as_json:
        echo(LEGEND)
    return 0 if reports and all(report.ok for report in reports) else 1


def _show(report: AttackReport) -> None:
    rows = [
        (MARKS[c.status], p.policy, c.cell, c.status, c.enforcement or "", f"{c.effects}/{c.tries}")
        for p in report.policies
        for c in p.cells
    ]
    head = ("", "policy", "cell", "", "reported as", "effects")
    echo(table(head, rows))
    for policy in report.policies:
        if policy.refused:
            echo(f"{policy.policy}: refused: {policy.refused}")
        if policy.problem:
            echo(f"{policy.policy}: {policy.problem}")
    for name, tried in report.broken:
        echo(f"✗ {name}: {tried.cell}: {tried.group}: {tried.name}: {tried.seen}")


def _summary(report: AttackReport) -> str:
    tried = [one for policy in report.policies for one in policy.tried]
    made = sum(one.outcome in ("held", "effect", "not offered") for one in tried)
    return f"{made} attempts, {len(report.broken)} broke an enforced cell"
