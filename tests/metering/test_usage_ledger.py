"""What the agents of pipelines and batches used is stored, and added to that of sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.pipeline_command import corral

from corral._metering.turn_usage import TurnUsage, UsageQuery, add_to_ledger
from corral._sessions import index
from corral._system import paths
from corral.errors import ConfigError
from corral.values import Usage

USED = Usage(input=100, output=10, coverage="complete")


TURN = TurnUsage(
    session="run-1",
    turn=1,
    agent="gemini-cli",
    cwd="/a/b",
    started=1e9,
    model="flash",
    usage=USED,
    cost=0.5,
    source="metered",
)


@pytest.fixture
def recorded() -> None:
    node = replace(TURN, kind="pipeline", project="/p", label="nightly")
    add_to_ledger([node, replace(node, turn=2, model="pro")])
    add_to_ledger([replace(TURN, turn=3, kind="batch", session="many", cwd="/c")])
    add_to_ledger([])


@pytest.mark.usefixtures("recorded")
def test_pipelines_and_batches_are_in_every_report() -> None:
    for by in ("day", "agent", "model", "project", "kind", "label", "run"):
        total = index.usage_report(UsageQuery(by=by)).total
        assert (total.turns, total.sessions, total.cost_usd) == (3, 2, 1.5)
    by_kind = index.usage_report(UsageQuery(by="kind"))
    assert [(row.key, row.turns, row.usage.input) for row in by_kind.rows] == [
        ("pipeline", 2, 200),
        ("batch", 1, 100),
    ]
    labels = index.usage_report(UsageQuery(by="label")).rows
    assert [row.key for row in labels] == ["nightly", "unknown"]
    for query, turns in (
        (UsageQuery(model="pr"), 1),
        (UsageQuery(project="/p"), 2),
        (UsageQuery(project="/c"), 1),
        (UsageQuery(kind="batch"), 1),
        (UsageQuery(run="many"), 1),
        (UsageQuery(agent="other"), 0),
        (UsageQuery(since=1e9 + 1), 0),
        (UsageQuery(until=1e9), 0),
    ):
        assert index.usage_report(query).total.turns == turns, query
    with pytest.raises(ConfigError, match="label"):
        index.usage_report(UsageQuery(by="node"))


@pytest.mark.usefixtures("recorded")
def test_a_line_that_was_cut_is_left_out_and_the_file_is_private() -> None:
    [file] = (paths.home() / "usage").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    with file.open("ab") as open_file:
        open_file.write(b'{"session":"cut')
    assert index.usage_report(UsageQuery()).total.turns == 3


@pytest.mark.usefixtures("recorded")
def test_the_command_groups_by_kind(workspace: Path) -> None:
    shown = corral("runs", "usage", "--by", "kind", cwd=workspace)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[1].split()[0] == "pipeline"


def test_what_a_scripted_model_answered_is_in_no_sum_of_money() -> None:
    add_to_ledger([TURN, replace(TURN, turn=2, scripted=True)])
    total = index.usage_report(UsageQuery()).total
    assert (total.turns, total.usage.input, total.cost_usd) == (2, 200, 0.5)
    assert total.turns_without_cost == 0
