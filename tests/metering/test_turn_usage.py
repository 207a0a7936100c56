"""What stored sessions have used, from the index."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.pipeline_command import corral
from support.stored_sessions import Transcript, write_session

from corral import events
from corral._metering.turn_usage import UsageQuery
from corral._sessions import index
from corral._sessions.store import EVENTS, META, Meta
from corral._system import paths
from corral.errors import ConfigError
from corral.values import Cost, Usage

DAY = 86_400.0
USAGE = Usage(input=100, output=10, cache_read=20, coverage="complete")


def call(model: str, cost: float | None = 0.25, *, partial: bool = False) -> events.ModelCall:
    money = Cost() if cost is None else Cost(cost, "metered")
    return events.ModelCall(model=model, usage=USAGE, cost=money, status=200, partial=partial)


def store(name: str, transcript: Transcript, *, agent: str = "gemini-cli", cwd: str = "/a") -> Path:
    meta = Meta(id=name, agent=agent, cwd=cwd, created=1.0, updated=transcript.now, title=name)
    return write_session(paths.home(), meta, transcript.events)


@pytest.fixture
def sessions() -> None:
    now = time.time()
    metered = Transcript("gemini-cli", started=now - 2 * DAY)
    for model in ("flash", "pro", "flash"):
        metered.add(call(model))
    metered.add(
        events.Done(
            status="success",
            usage=Usage(input=300, output=30, cache_read=60, coverage="complete"),
            cost=Cost(0.75, "metered"),
            usage_source="metered",
        )
    )
    store("metered-1", metered)
    reported = Transcript("claude-cli", started=now - 100)
    reported.add(
        events.Done(
            status="success",
            model="opus",
            usage=USAGE,
            cost=Cost(2.0, "reported"),
            usage_source="reported",
        )
    )
    reported.add(events.Done(status="error", model="opus"))
    store("reported-1", reported, agent="claude-cli", cwd="/a/b")
    running = Transcript("gemini-cli", started=now - 50)
    running.add(call("flash", None)).add(call("flash", 0.5, partial=True))
    store("running-1", running, cwd="/ab")


@pytest.mark.usefixtures("sessions")
def test_every_grouping_has_the_same_total_and_unknown_is_not_zero() -> None:
    for by in ("day", "agent", "model", "project", "run"):
        found = index.usage_report(UsageQuery(by=by))
        total = found.total
        assert (total.usage.input, total.usage.output, total.usage.cache_read) == (600, 60, 120)
        assert total.cost_usd == pytest.approx(0.75 + 2.0 + 0.5)
        assert total.cost_by_source == pytest.approx({"metered": 1.25, "reported": 2.0})
        assert (total.turns, total.sessions, total.calls) == (4, 3, 5)
        assert (total.turns_without_cost, total.turns_partial) == (1, 1)
        assert sum(row.cost_usd or 0.0 for row in found.rows) == pytest.approx(3.25)
    by_model = {row.key: row for row in index.usage_report(UsageQuery(by="model")).rows}
    assert by_model["flash"].cost_usd == pytest.approx(1.0)
    assert (by_model["pro"].cost_usd, by_model["pro"].usage.input) == (0.25, 100)
    assert (by_model["opus"].turns, by_model["opus"].turns_without_cost) == (2, 1)
    days = [row.key for row in index.usage_report(UsageQuery(by="day")).rows]
    assert days == sorted(days)
    assert len(days) >= 2


@pytest.mark.usefixtures("sessions")
def test_turns_are_selected_by_time_agent_model_folder_and_session() -> None:
    now = time.time()
    for query, sessions in (
        (UsageQuery(by="run", since=now - DAY), {"reported-1", "running-1"}),
        (UsageQuery(by="run", until=now - DAY), {"metered-1"}),
        (UsageQuery(by="run", agent="claude-cli"), {"reported-1"}),
        (UsageQuery(by="run", model="pr"), {"metered-1"}),
        (UsageQuery(by="run", project="/a/b"), {"reported-1"}),
        (UsageQuery(by="run", run="running-1"), {"running-1"}),
        (UsageQuery(by="run", agent="nobody"), set[str]()),
    ):
        assert {row.key for row in index.usage_report(query).rows} == sessions, query
    with pytest.raises(ConfigError, match="by must be one of day"):
        index.usage_report(UsageQuery(by="week"))
    assert index.usage_report(UsageQuery(agent="nobody")).total.cost_usd is None


@pytest.mark.usefixtures("sessions")
def test_a_transcript_that_did_not_change_is_not_read_again() -> None:
    first = index.usage_report(UsageQuery())
    for name in ("metered-1", "reported-1", "running-1"):
        (paths.sessions() / name / EVENTS).unlink()
    assert index.usage_report(UsageQuery()) == first
    (paths.sessions() / "metered-1" / META).unlink()
    assert index.usage_report(UsageQuery()).total.sessions == 2


def test_without_sessions_there_is_nothing() -> None:
    found = index.usage_report(UsageQuery())
    assert (found.rows, found.total.cost_usd, found.total.turns) == ([], None, 0)


@pytest.mark.usefixtures("sessions")
@pytest.mark.deep
def test_the_command_prints_a_table_or_json(workspace: Path) -> None:
    shown = corral("runs", "usage", "--by", "agent", cwd=workspace)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:3] == ["agent", "runs", "turns"]
    assert "$2.0000+" in lines[1]
    assert "metered, reported" in shown.stdout
    assert "The cost of 1 of 4 turns is not known." in shown.stdout
    assert "Partial: 1 turn; more may be billed." in shown.stdout
    found = json.loads(corral("runs", "usage", "--by", "model", "--json", cwd=workspace).stdout)
    assert {row["key"] for row in found["rows"]} == {"flash", "pro", "opus"}
    assert found["total"]["cost_usd"] == pytest.approx(3.25)
    for words, message in (
        (("--since", "soon"), "--since"),
        (("--since", "1d", "--until", "2d"), "--since is not before --until"),
        (("--by", "week"), "--by"),
        (("--session", "nothing"), "nothing"),
    ):
        refused = corral("runs", "usage", *words, cwd=workspace)
        assert refused.returncode != 0
        assert message in refused.stderr
