"""The attack kit detects effects and reports which cells are enforced."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.costs import deep_but

from corral._agents import registry
from corral._agents.report import PolicyRow
from corral._testing.attack.arena import Arena
from corral._testing.attack.attempts.attempt import Cell
from corral._testing.attack.client_files import FileMethodAttack
from corral._testing.attack.effects import EffectObserver
from corral._testing.attack.plan import (
    ATTEMPTS,
    CELLS,
    POLICIES,
    AttackSubject,
    AttemptChoice,
)
from corral._testing.attack.report import (
    AttackReport,
    Outcome,
    PolicyReport,
    Tried,
    markdown,
    summarize,
)
from corral.errors import ConfigError
from corral.testing import attack_agent

pytestmark = pytest.mark.whole_program

CORRAL = str(Path(sys.executable).with_name("corral"))


def tried(cell: Cell, outcome: Outcome) -> Tried:
    return Tried(name="x", group="g", cell=cell, tool="t", outcome=outcome, seen="it happened")


def test_every_group_has_many_attempts_with_unique_names() -> None:
    assert len(ATTEMPTS) > 150
    assert len({a.group for a in ATTEMPTS}) >= 12
    counted = Counter((a.cell, a.group, a.name) for a in ATTEMPTS)
    assert [key for key, count in counted.items() if count > 1] == []


def test_an_effect_breaks_an_enforced_cell_and_others_are_shown_as_reported() -> None:
    rows = [
        PolicyRow("shell", "deny", "native"),
        PolicyRow("network", "deny", "advisory"),
        PolicyRow("read", "allow", "native"),
        PolicyRow("write", "allow", "native", races="open"),
    ]
    found = summarize(
        [
            tried("shell", "held"),
            tried("shell", "effect"),
            tried("network", "effect"),
            tried("read inside", "effect"),
            tried("write inside", "held"),
            tried("write outside", "not offered"),
            tried("races", "effect"),
            tried("mcp", "refused"),
        ],
        frozenset({"shell", "network", "write outside", "races", "mcp"}),
        rows,
    )
    assert {cell.cell: cell.status for cell in found} == {
        "shell": "broken",
        "network": "not enforced",
        "read inside": "allowed",
        "write inside": "unproven",
        "write outside": "held",
        "races": "not enforced",
        "mcp": "refused",
    }
    policy = PolicyReport(policy="edits", cells=found, tried=(tried("shell", "effect"),))
    report = AttackReport("mine", (policy,))
    assert not report.ok
    assert [(name, one.cell) for name, one in report.broken] == [("edits", "shell")]
    assert "| shell         | ✗    |" in markdown([report])


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (PolicyRow("write", "allow", "native"), "broken"),
        (PolicyRow("write", "deny", "native"), "broken"),
        (PolicyRow("write", "ask", "brokered", races="open"), "broken"),
        (PolicyRow("write", "allow", "brokered", races="open"), "not enforced"),
    ],
)
def test_a_lost_race_breaks_the_cell_unless_the_report_says_that_races_are_open(
    row: PolicyRow, status: str
) -> None:
    found = summarize([tried("races", "effect")], frozenset({"races"}), [row])
    assert [cell.status for cell in found] == [status]


async def test_an_agent_that_approves_everything_breaks_its_policy(
    workspace: Path,
) -> None:
    """The proof that the attempts work: with every question answered yes, they have effects."""
    report = await attack_agent(
        "corral",
        policies=["default"],
        only=["files", "shell beliefs"],
        options={"permission_mode": "auto"},
    )
    effects = Counter(one.cell for policy in report.policies for one in policy.tried if one.seen)
    kinds = {one.seen.rpartition(" was ")[2] for p in report.policies for one in p.tried}
    assert effects["shell"] > 30, report
    assert effects["write inside"] >= 3, report
    assert {"made", "changed"} <= kinds
    assert not report.ok


@pytest.mark.deep
async def test_the_built_in_agent_enforces_what_it_reports(workspace: Path) -> None:
    report = await attack_agent("corral", policies=["default", "reads"], sample=8)
    assert report.ok, report
    statuses = {cell.cell: cell.status for cell in report.policies[0].cells}
    assert statuses["read inside"] == "allowed"
    assert {"shell", "write outside", "read outside", "network"} <= {
        cell for cell, status in statuses.items() if status == "held"
    }
    assert set(statuses) <= set(CELLS)


async def test_a_denied_permission_request_has_no_effect(workspace: Path) -> None:
    report = await attack_agent("corral", policies=["asked"], sample=3)
    assert report.ok, report
    (policy,) = report.policies
    assert policy.asked > 5
    assert {c.cell for c in policy.cells if c.status == "held"} >= {"read inside", "shell"}


def file_methods(agent: str, policy: str) -> FileMethodAttack:
    """With a program in the agent's place: neither it nor a model is needed."""
    record = registry.find(agent)
    assert record.probe is not None
    return FileMethodAttack(AttackSubject(agent, record, record.probe), POLICIES[policy])


@pytest.mark.parametrize("policy", deep_but(["default", "all", "asked"], "all"))
async def test_the_file_methods_of_acp_are_called_offered_or_not(
    workspace: Path, policy: str
) -> None:
    cell, calls = await file_methods("gemini-acp", policy).play(AttemptChoice())
    assert cell is not None
    assert (cell.status, cell.effects) == ("held", 0), [one for one in calls if one.seen]
    assert len(calls) > (60 if policy == "all" else 120)
    assert {one.tool for one in calls} == {"fs/read_text_file", "fs/write_text_file"}
    assert {one.name.rpartition(", ")[2] for one in calls} == {"offered", "not offered"}


ACP_AGENTS = [
    a.name for a in registry.all_agents() if a.transport.kind == "acp" and a.probe is not None
]


@pytest.mark.parametrize("agent", deep_but(ACP_AGENTS, "gemini-acp"))
async def test_no_agent_writes_outside_by_the_file_methods_of_acp(
    workspace: Path, agent: str
) -> None:
    cell, calls = await file_methods(agent, "edits").play(AttemptChoice(sample=8))
    assert cell is not None
    assert (cell.status, cell.effects) == ("held", 0), [one for one in calls if one.seen]


def test_a_saved_memory_is_found_on_disk(tmp_path: Path) -> None:
    memory = next(a for a in ATTEMPTS if a.act == "memory")
    with Arena(tmp_path, links=False) as arena:
        arena.plant([memory])
        witness = EffectObserver(arena, [], [])
        assert not witness.seen(memory)
        (arena.cwd / "NOTES.md").write_text(arena.fill(memory.given["text"], memory))
        assert "NOTES.md" in witness.seen(memory)


async def test_a_policy_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'files' to attack under: it does not apply to corral"):
        await attack_agent("corral", policies=["files"])


async def test_a_policy_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no policy 'edit'"):
        await attack_agent("corral", policies=["edit"])


@pytest.mark.deep
def test_the_command_attacks_agents_at_once_and_prints_a_line_for_each(tmp_path: Path) -> None:
    names = ["corral", "openai:gpt-5.5"]
    command = [CORRAL, "agents", "check", "--attack", *names, "--concurrency", "2"]
    few = ["--approve", "default", "--only", "files", "--only", "path escapes"]
    done = subprocess.run(
        [*command, *few, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["agent"], line["ok"]) for line in lines] == [(name, True) for name in names]
    for line in lines:
        groups = {one["group"] for one in line["policies"][0]["tried"]}
        assert groups == {"files", "path escapes"}
