"""The events of several agents as one stream. The runs are in ``test_agent_fallback``."""

from __future__ import annotations

from msgspec.structs import replace
from support.stream_checks import check_stream

from corral._sessions.limits.machine import JoinedStream, end_with_limit, end_without, is_limit
from corral.events import (
    Done,
    Error,
    Event,
    Init,
    Text,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageReport,
    hand_over_of,
)
from corral.result import result_from_events
from corral.values import Cost, FileChanged, Usage

FIRST, NEXT = "gemini-cli", "claude-cli"
SPENT = Usage(input=10, output=1, coverage="complete")
LIMIT = Error("rate_limit", "slow down", facts={"resets_at": 900.0, "retry_after": 3.0})
ONE_USD, TWO_USD = Cost(1.0, "metered"), Cost(2.0, "metered")


def numbered(agent: str, *events: Event) -> list[Event]:
    """The events as one agent sends them."""
    return [
        replace(event, seq=seq, ts=float(seq), run_id=f"{agent}.1", agent=agent)
        for seq, event in enumerate(events, 1)
    ]


def limited(**end: object) -> list[Event]:
    """The stream of an agent that called a tool and met a limit."""
    done = replace(Done("error", error=LIMIT, usage=SPENT, cost=ONE_USD, model="one"), **end)
    call = (ToolUse("1", name="read"), ToolResult("1", "success", name="read"))
    return numbered(FIRST, Init(model="one"), *call, Text("half"), LIMIT, done)


def joined(first: list[Event], *following: Event) -> list[Event]:
    batch, ended = end_with_limit(first, "claude-cli continues")
    stream = JoinedStream(ended, {"1"})
    after = [
        replace(event, ts=event.ts + len(batch)) for event in numbered(NEXT, Init(), *following)
    ]
    return check_stream([*batch, *stream.take(after)], agents=2)


def end_of(events: list[Event]) -> Done:
    done = events[-1]
    assert isinstance(done, Done)
    return done


def test_the_next_agent_continues_the_numbers_and_the_limit_is_recoverable() -> None:
    events = joined(limited(), Text("all"), Done("success"))
    assert [type(event).type for event in events[4:7]] == ["error", "vendor", "text"]
    limit = events[4]
    assert isinstance(limit, Error)
    assert (limit.recoverable, limit.code) == (True, "rate_limit")
    assert limit.message == "gemini-cli: slow down: claude-cli continues"
    change = hand_over_of(events[5])
    assert change is not None
    assert (change.agent, change.usage, change.cost, change.init.agent) == (
        FIRST,
        SPENT,
        ONE_USD,
        NEXT,
    )
    assert result_from_events(events).text == "half\n\nall"


def test_an_id_of_a_call_that_was_used_before_gets_a_suffix() -> None:
    events = joined(
        limited(),
        ToolUse("1", name="task"),
        Text("inside", parent="1"),
        ToolOutput("1", "x"),
        ToolResult("1", "success", name="task"),
        ToolUse("2", name="read"),
        ToolResult("2", "success", name="read"),
        Done("success"),
    )
    ids = [event.call_id for event in events if isinstance(event, ToolUse)]
    assert ids == ["1", "1@claude-cli.1", "2"]
    assert [event.parent for event in events if event.parent] == ["1@claude-cli.1"]


def test_usage_and_cost_are_those_of_all_agents_with_the_share_of_each_model() -> None:
    own = Usage(input=100, output=2, coverage="complete")
    report = UsageReport(own, cost=TWO_USD)
    events = joined(limited(), report, Done("success", usage=own, cost=TWO_USD, model="two"))
    (shown,) = [event for event in events if isinstance(event, UsageReport)]
    assert (shown.usage, shown.cost) == (SPENT + own, Cost(3.0, "metered"))
    done = end_of(events)
    assert (done.usage, done.cost) == (SPENT + own, Cost(3.0, "metered"))
    assert done.usage_by_model == {"one": SPENT, "two": own}


def test_a_cost_that_one_agent_does_not_report_is_unknown_unless_it_used_nothing() -> None:
    own = Done("success", usage=SPENT, cost=TWO_USD)
    assert end_of(joined(limited(cost=Cost()), own)).cost == Cost()
    assert end_of(joined(limited(cost=Cost(), usage=Usage()), own)).cost == TWO_USD
    assert end_of(joined(limited(), Done("success"))).cost == ONE_USD


def test_who_counted_the_tokens_is_the_weaker_of_both() -> None:
    own = Done("success", usage=SPENT, usage_source="metered")
    assert end_of(joined(limited(usage_source="metered"), own)).usage_source == "metered"
    assert end_of(joined(limited(usage_source="reported"), own)).usage_source == "reported"
    nothing = limited(usage=Usage(), usage_source="unknown")
    assert end_of(joined(nothing, own)).usage_source == "metered"


def test_the_files_of_both_are_joined() -> None:
    made = (FileChanged("/a", "created", 3, 0), FileChanged("/b", "modified", 1, 1))
    changed = (FileChanged("/a", "modified", 2, 1), FileChanged("/c", "deleted"))
    done = end_of(joined(limited(files=made), Done("success", files=changed)))
    assert {file.path: file.kind for file in done.files} == {
        "/a": "created",
        "/b": "modified",
        "/c": "deleted",
    }


def test_if_both_are_limited_the_error_has_the_earliest_reset() -> None:
    later = Error("quota_spent", "spent", facts={"resets_at": 5_000.0, "retry_after": 4_000.0})
    events = joined(limited(), later, Done("error", error=later))
    error = end_of(events).error
    assert error is not None
    assert error.facts == {"resets_at": 900.0}
    assert error.message == "gemini-cli: slow down; claude-cli: spent"
    shown = events[-2]
    assert isinstance(shown, Error)
    assert (shown.message, shown.recoverable) == (error.message, False)


def test_another_error_of_the_next_agent_stays_as_it_is() -> None:
    other = Error("network", "no route")
    assert end_of(joined(limited(), other, Done("error", error=other))).error == other


def test_the_end_of_an_agent_that_no_other_could_continue_says_why() -> None:
    batch, ended = end_with_limit(limited(), "claude-cli continues")
    events = check_stream([*batch, *end_without(ended, "claude-cli cannot continue: it is gone")])
    error = end_of(events).error
    assert error is not None
    assert error.message == "slow down; claude-cli cannot continue: it is gone"
    assert is_limit(end_of(events))
