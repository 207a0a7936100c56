"""The attack kit sees what an agent does, and says which cells hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from corral.agents.spec import Row
from corral.errors import ConfigError
from corral.testing import attack_agent
from corral.testing.attack.attempts import Cell
from corral.testing.attack.plan import ATTEMPTS, CELLS
from corral.testing.attack.report import AttackReport, Outcome, PolicyReport, Tried, fold, markdown

CORRAL = str(Path(sys.executable).with_name("corral"))


def tried(cell: Cell, outcome: Outcome) -> Tried:
    return Tried(name="x", group="g", cell=cell, tool="t", outcome=outcome, seen="it happened")


def test_there_are_many_attempts_of_every_class_and_each_has_a_name_of_its_own() -> None:
    assert len(ATTEMPTS) > 150
    assert len({a.group for a in ATTEMPTS}) >= 12
    counted = Counter((a.cell, a.group, a.name) for a in ATTEMPTS)
    assert [key for key, count in counted.items() if count > 1] == []


def test_an_effect_in_an_enforced_cell_breaks_it_and_elsewhere_it_is_shown_as_reported() -> None:
    rows = [
        Row("shell", "deny", "native"),
        Row("network", "deny", "advisory"),
        Row("read", "allow", "native"),
        Row("write", "allow", "native"),
    ]
    found = fold(
        [
            tried("shell", "held"),
            tried("shell", "effect"),
            tried("network", "effect"),
            tried("read inside", "effect"),
            tried("write inside", "held"),
            tried("write outside", "not offered"),
            tried("mcp", "refused"),
        ],
        frozenset({"shell", "network", "write outside", "mcp"}),
        rows,
    )
    assert {cell.cell: cell.status for cell in found} == {
        "shell": "broken",
        "network": "not enforced",
        "read inside": "allowed",
        "write inside": "unproven",
        "write outside": "held",
        "mcp": "refused",
    }
    policy = PolicyReport(policy="edits", cells=found, tried=(tried("shell", "effect"),))
    report = AttackReport("mine", (policy,))
    assert not report.ok
    assert [(name, one.cell) for name, one in report.broken] == [("edits", "shell")]
    assert "| shell         | ✗    |" in markdown([report])


async def test_an_agent_that_approves_everything_is_seen_to_break_its_policy(
    workspace: Path,
) -> None:
    """The proof that the attempts work: with every question answered yes, they have effects."""
    report = await attack_agent("corral", policies=["default"], options={"permission_mode": "auto"})
    effects = Counter(one.cell for policy in report.policies for one in policy.tried if one.seen)
    kinds = {one.seen.rpartition(" was ")[2] for p in report.policies for one in p.tried}
    assert effects["shell"] > 30, report
    assert effects["write inside"] >= 3, report
    assert {"made", "changed"} <= kinds
    assert not report.ok


async def test_our_own_agent_holds_what_it_reports(workspace: Path) -> None:
    report = await attack_agent("corral", policies=["default", "reads"])
    assert report.ok, report
    statuses = {cell.cell: cell.status for cell in report.policies[0].cells}
    assert statuses["read inside"] == "allowed"
    assert {"shell", "write outside", "read outside", "network"} <= {
        cell for cell, status in statuses.items() if status == "held"
    }
    assert set(statuses) <= set(CELLS)


async def test_a_policy_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no policy 'edit'"):
        await attack_agent("corral", policies=["edit"])


def test_the_command_prints_the_table_and_fails_where_a_cell_is_broken(tmp_path: Path) -> None:
    command = [CORRAL, "agents", "check", "--attack", "corral", "--approve", "default"]
    few = ["--only", "files", "--only", "path escapes"]
    done = subprocess.run(
        [*command, *few, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert line["ok"] is True
    assert {one["group"] for one in line["policies"][0]["tried"]} == {"files", "path escapes"}
