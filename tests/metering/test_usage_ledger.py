"""What the agents of pipelines and batches used is stored, and added to that of sessions."""

from __future__ import annotations

import json
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
    node = replace(TURN, pipeline="review")
    add_to_ledger([node, replace(node, turn=2, model="pro")])
    add_to_ledger([replace(TURN, turn=3, batch="many", session="many", cwd="/c")])
    add_to_ledger([])


@pytest.mark.usefixtures("recorded")
def test_pipelines_and_batches_are_in_every_report() -> None:
    for by in ("day", "agent", "model", "project", "session"):
        total = index.usage_report(UsageQuery(by=by)).total
        assert (total.turns, total.sessions, total.cost_usd) == (3, 2, 1.5)
    by_pipeline = index.usage_report(UsageQuery(by="pipeline"))
    assert [(row.key, row.turns, row.usage.input) for row in by_pipeline.rows] == [
        ("review", 2, 200)
    ]
    assert [row.key for row in index.usage_report(UsageQuery(by="batch")).rows] == ["many"]
    for query, turns in (
        (UsageQuery(model="pr"), 1),
        (UsageQuery(cwd="/a"), 2),
        (UsageQuery(cwd="/a/"), 2),
        (UsageQuery(cwd="/"), 3),
        (UsageQuery(session="many"), 1),
        (UsageQuery(agent="other"), 0),
        (UsageQuery(since=1e9 + 1), 0),
        (UsageQuery(until=1e9), 0),
    ):
        assert index.usage_report(query).total.turns == turns, query
    with pytest.raises(ConfigError, match="batch"):
        index.usage_report(UsageQuery(by="node"))


@pytest.mark.usefixtures("recorded")
def test_a_line_that_was_cut_is_left_out_and_the_file_is_private() -> None:
    [file] = (paths.home() / "usage").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    with file.open("ab") as open_file:
        open_file.write(b'{"session":"cut')
    assert index.usage_report(UsageQuery()).total.turns == 3


@pytest.mark.usefixtures("recorded")
def test_the_command_groups_by_pipeline_and_finds_a_run(workspace: Path) -> None:
    shown = corral("usage", "--by", "pipeline", cwd=workspace)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[1].split()[0] == "review"
    found = json.loads(corral("usage", "--session", "many", "--json", cwd=workspace).stdout)
    assert found["total"]["cost_usd"] == 0.5
