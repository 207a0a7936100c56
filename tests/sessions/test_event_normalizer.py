"""Whatever an agent writes, the event stream is valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import check_stream, no_deadline

from corral import errors
from corral._protocol.ndjson import RawEvent, TurnEnd
from corral._sessions import event_normalizer as guards
from corral._sessions.event_normalizer import EventNormalizer
from corral.errors import classes_by_code
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    Init,
    Log,
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolOutput,
    ToolResult,
    ToolUse,
    Unknown,
    UsageReport,
    Vendor,
)
from corral.values import Cost, Usage

E = TypeVar("E", bound=Event)


def new_normalizer(**more: Callable[[str], bool | None]) -> EventNormalizer:
    init = Init(
        run_id="run-1", agent="an-agent", cwd="/work", model="m-asked", agent_version="1.2.3"
    )
    return EventNormalizer(init, started=100.0, **more)


def normalized(*items: RawEvent, error: errors.CorralError | None = None) -> list[Event]:
    """The stream that these items become, valid or the test fails."""
    normalizer = new_normalizer()
    events: list[Event] = []
    for number, item in enumerate(items):
        events += normalizer.take([item], 101.0 + number)
    return check_stream([*events, *normalizer.close(200.0, error)])


def done_of(events: list[Event]) -> Done:
    done = events[-1]
    assert isinstance(done, Done)
    return done


def of_type(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def test_a_turn_without_output_has_init_and_done() -> None:
    init, done = normalized()
    assert isinstance(init, Init)
    assert (init.model, init.cwd, init.agent_version) == ("m-asked", "/work", "1.2.3")
    assert isinstance(done, Done)


def test_the_agents_init_is_completed_with_known_facts() -> None:
    init = normalized(Init(session_id="s-1", model="m-real"))[0]
    assert isinstance(init, Init)
    assert (init.model, init.cwd, init.session_id) == ("m-real", "/work", "s-1")


def test_the_vendors_session_id_is_on_every_event_once_known() -> None:
    events = normalized("early", Init(session_id="s-1"), "late")
    assert [event.session_id for event in events] == [None, None, "s-1", "s-1", "s-1"]


def test_log_lines_before_init_are_emitted_after_it() -> None:
    events = normalized(Log("a banner"), Error("odd", "odd", recoverable=True), Init(), "hello")
    assert [type(event) for event in events] == [Init, Log, Error, Text, Done]


def test_log_lines_without_an_init_come_after_a_default_one() -> None:
    assert [type(event) for event in normalized(Log("all it ever said"))] == [Init, Log, Done]


def test_a_bounded_number_of_lines_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_BEFORE_INIT", 3)
    normalizer = new_normalizer()
    assert normalizer.take([Log("1"), Log("2"), Log("3")], 101.0) == []
    began = normalizer.take([Log("4")], 102.0)
    assert [type(event) for event in began] == [Init, Log, Log, Log, Log]


def test_a_second_init_is_a_vendor_event() -> None:
    events = normalized(Init(session_id="s-1"), Init(session_id="s-2", model="other"))
    (second,) = of_type(events, Vendor)
    assert second.name == "init"
    assert done_of(events).session_id == "s-2"


def test_a_done_event_from_the_agent_does_not_end_the_stream() -> None:
    events = normalized("before", Done(status="success"), "after")
    assert [type(event) for event in events] == [Init, Text, Vendor, Text, Done]


def test_a_result_gets_its_tools_name_and_how_long_it_took() -> None:
    (result,) = of_type(normalized(ToolUse("c1", "look"), ToolResult("c1", "success")), ToolResult)
    assert (result.name, result.duration_ms) == ("look", 1000)


def test_a_duration_that_the_agent_reports_is_kept() -> None:
    events = normalized(ToolUse("c1", "look"), ToolResult("c1", "success", duration_ms=7))
    assert of_type(events, ToolResult)[0].duration_ms == 7


def test_a_result_without_a_tool_use_gets_one() -> None:
    events = normalized(ToolResult("c1", "success", name="look"))
    assert [type(event) for event in events] == [Init, ToolUse, ToolResult, Done]
    assert of_type(events, ToolUse)[0].name == "look"


def test_output_without_a_tool_use_gets_one_that_is_closed() -> None:
    events = normalized(ToolOutput("", "half a line"))
    assert [type(event) for event in events] == [Init, ToolUse, ToolOutput, ToolResult, Done]
    assert len({getattr(event, "call_id") for event in events[1:4]}) == 1  # noqa: B009


def test_a_second_result_of_one_tool_is_a_vendor_event() -> None:
    events = normalized(
        ToolUse("c1", "look"), ToolResult("c1", "success"), ToolResult("c1", "error")
    )
    (late,) = of_type(events, Vendor)
    assert late.name == "late_tool_result"
    assert [result.status for result in of_type(events, ToolResult)] == ["success"]


def test_output_after_the_result_is_a_vendor_event() -> None:
    events = normalized(
        ToolUse("c1", "look"), ToolResult("c1", "success"), ToolOutput("c1", "more")
    )
    assert of_type(events, Vendor)[0].name == "late_tool_output"


def test_tools_still_open_at_the_end_are_cancelled() -> None:
    events = normalized(ToolUse("c1", "look"), ToolUse("c2", "run"), ToolResult("c1", "success"))
    assert [(r.call_id, r.status) for r in of_type(events, ToolResult)] == [
        ("c1", "success"),
        ("c2", "cancelled"),
    ]


def test_two_open_tools_of_one_id_each_get_a_result_in_order() -> None:
    events = normalized(
        ToolUse("c1", "first"),
        ToolUse("c1", "second"),
        ToolResult("c1", "success"),
        ToolResult("c1", "error"),
    )
    assert [(r.name, r.status) for r in of_type(events, ToolResult)] == [
        ("first", "success"),
        ("second", "error"),
    ]


def test_an_id_used_again_after_its_result_is_another_tool() -> None:
    events = normalized(
        ToolUse("c1", "first"),
        ToolResult("c1", "success"),
        ToolUse("c1", "second"),
        ToolOutput("c1", "working"),
        ToolResult("c1", "denied"),
    )
    assert [(r.name, r.status) for r in of_type(events, ToolResult)] == [
        ("first", "success"),
        ("second", "denied"),
    ]
    assert done_of(events).denied[0].name == "second"


def test_tools_without_an_id_get_one_each_and_their_results_in_order() -> None:
    events = normalized(
        ToolUse("", "first"),
        ToolUse("", "second"),
        ToolResult("", "success"),
        ToolResult("", "error"),
    )
    assert [(r.name, r.status) for r in of_type(events, ToolResult)] == [
        ("first", "success"),
        ("second", "error"),
    ]


def test_ids_of_closed_tools_are_remembered_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_CLOSED_IDS", 2)
    normalizer = new_normalizer()
    for number in range(5):
        normalizer.take([ToolUse(f"c{number}", "t"), ToolResult(f"c{number}", "success")], 101.0)
    forgotten = normalizer.take([ToolResult("c0", "success")], 102.0)
    remembered = normalizer.take([ToolResult("c4", "success")], 102.0)
    assert [type(event) for event in forgotten] == [ToolUse, ToolResult]
    assert [type(event) for event in remembered] == [Vendor]


def test_a_refusal_is_listed_with_its_reason() -> None:
    events = normalized(
        ToolUse("c1", "write", title="write a.txt"),
        ToolResult("c1", "denied", error="not under this policy"),
        TurnEnd(ok=True),
    )
    (refusal,) = done_of(events).denied
    assert (refusal.name, refusal.title, refusal.reason, refusal.call_id) == (
        "write",
        "write a.txt",
        "not under this policy",
        "c1",
    )
    assert done_of(events).status == "success"


@pytest.mark.parametrize(("existed", "kind"), [(False, "created"), (True, "modified")])
def test_a_confirmed_edit_is_a_file_change_with_an_absolute_path(existed: bool, kind: str) -> None:
    normalizer = new_normalizer(existed=lambda path: existed if path == "/work/sub/a.txt" else None)
    use = ToolUse("c1", "write", kind="edit", paths=("sub/../sub/a.txt",))
    events = normalizer.take([use, ToolResult("c1", "success")], 101.0)
    (change,) = of_type(events, FileChange)
    assert (change.path, change.kind, change.call_id) == ("/work/sub/a.txt", kind, "c1")


def test_a_file_created_and_edited_again_stays_created_in_the_end() -> None:
    normalizer = new_normalizer(existed=lambda _path: False)
    for call in ("c1", "c2"):
        use = ToolUse(call, "write", kind="edit", paths=("a.txt",))
        normalizer.take([use, ToolResult(call, "success")], 101.0)
    assert normalizer.written == {"/work/a.txt": "created"}


@pytest.mark.parametrize("status", ["error", "denied", "cancelled"])
def test_a_write_that_was_not_confirmed_changes_no_file(status: str) -> None:
    failed = ToolResult("c1", status)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    events = normalized(ToolUse("c1", "write", kind="edit", paths=("a.txt",)), failed)
    assert of_type(events, FileChange) == []


def test_reading_a_file_is_no_change() -> None:
    events = normalized(
        ToolUse("c1", "read", kind="read", paths=("a.txt",)), ToolResult("c1", "success")
    )
    assert of_type(events, FileChange) == []


def test_the_error_comes_before_done_and_is_in_it() -> None:
    events = normalized(
        "half", error=errors.RateLimited("slow down", hint="Wait.", retry_after=2.0)
    )
    answer_text = events[-2]
    assert isinstance(answer_text, Error)
    assert (answer_text.code, answer_text.retryable, answer_text.facts) == (
        "rate_limit",
        True,
        {"retry_after": 2.0},
    )
    in_done = done_of(events).error
    assert in_done is not None
    assert in_done.message == "slow down"
    assert done_of(events).status == "error"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.IdleTimeout("t"), "timeout"),
        (errors.TurnLimit("t"), "max_turns"),
        (errors.BudgetExceeded("t"), "max_budget"),
        (errors.StreamBroken("t"), "incomplete"),
        (errors.Interrupted("t"), "interrupted"),
    ],
)
def test_the_status_is_the_errors_own(error: errors.CorralError, status: str) -> None:
    assert done_of(normalized(error=error)).status == status


def test_the_turn_end_is_not_an_event_and_fills_done() -> None:
    usage = Usage(input=3, output=4, coverage="complete")
    events = normalized(TurnEnd(ok=True, usage=usage, model="m-real", stop_reason="end"))
    done = done_of(events)
    assert [type(event) for event in events] == [Init, Done]
    assert (done.usage, done.model, done.stop_reason) == (usage, "m-real", "end")
    assert done.duration_ms == 100_000


def test_without_a_turn_end_the_latest_usage_counts() -> None:
    events = normalized(
        UsageReport(Usage(input=3), cost=Cost(0.5, "reported")), UsageReport(Usage(input=5))
    )
    assert done_of(events).usage == Usage(input=5)
    assert done_of(events).cost == Cost(0.5, "reported")


@pytest.mark.parametrize("after", [(), (ToolUse("c1", "look"),), (Log("bye"), TurnEnd(ok=True))])
def test_answered_stays_true_whatever_follows_the_text(
    after: tuple[RawEvent, ...],
) -> None:
    normalizer = new_normalizer()
    normalizer.take([Init()], 101.0)
    assert not normalizer.answered
    normalizer.take(["text", *after], 101.0)
    assert normalizer.answered


def test_a_clock_that_is_set_back_makes_no_negative_duration() -> None:
    normalizer = new_normalizer()
    (done,) = [event for event in normalizer.close(50.0, None) if isinstance(event, Done)]
    assert done.duration_ms == 0


IDS = st.sampled_from(["", "a", "b", "a#1", "a#2", "call#1", "call#2"])
"""Few, and those that are made up here among them, so that they collide."""
STATUSES = st.sampled_from(["success", "error", "denied", "cancelled"])
ITEMS: st.SearchStrategy[RawEvent] = st.one_of(
    st.text(),
    st.builds(Init, session_id=st.none() | st.text(max_size=3), model=st.none() | st.just("m")),
    st.builds(ToolUse, IDS, st.just("tool"), kind=st.sampled_from(["edit", "read"]),
              paths=st.sampled_from([(), ("a.txt",), ("a.txt", "/b.txt")])),
    st.builds(ToolOutput, IDS, st.text(max_size=3)),
    st.builds(ToolResult, IDS, STATUSES, error=st.none() | st.text(max_size=3)),
    st.builds(Thinking, st.text(max_size=3)),
    st.builds(Log, st.text(max_size=3)),
    st.builds(Error, st.just("odd"), st.text(max_size=3)),
    st.builds(Plan, st.tuples(st.builds(PlanEntry, st.text(max_size=3)))),
    st.builds(Unknown, st.none() | st.integers(-(2**53), 2**53)),
    st.builds(UsageReport, st.builds(Usage, st.none() | st.integers(0, 9))),
    st.builds(Done, status=st.just("success")),
    st.builds(TurnEnd, ok=st.booleans()),
)  # fmt: skip
ERRORS = st.sampled_from(sorted(classes_by_code()))


@no_deadline
@given(batches=st.lists(st.lists(ITEMS, max_size=8), max_size=8), code=st.none() | ERRORS)
def test_any_items_in_any_order_become_a_valid_stream(
    batches: list[list[RawEvent]], code: str | None
) -> None:
    normalizer = new_normalizer()
    events: list[Event] = []
    for number, batch in enumerate(batches):
        events += normalizer.take(batch, 101.0 + number)
    error = classes_by_code()[code]("it broke") if code else None
    check_stream([*events, *normalizer.close(200.0, error)])


@no_deadline
@given(items=st.lists(st.text(min_size=1) | st.builds(Thinking, st.text()), max_size=20))
def test_no_text_is_lost_and_none_is_added(items: list[RawEvent]) -> None:
    answer_text = "".join(event.delta for event in of_type(normalized(*items), Text))
    assert answer_text == "".join(item for item in items if isinstance(item, str))


@pytest.mark.timeout(60)
def test_the_cost_of_a_result_does_not_grow_with_the_calls_that_are_open() -> None:
    """With a search through all open calls this takes minutes."""
    many = 45_000
    normalizer = new_normalizer()
    normalizer.take([ToolUse(str(n), "open") for n in range(many)], 1.0)
    events = normalizer.take([ToolResult(f"other-{n}", "success") for n in range(many)], 1.0)
    assert len(events) == 2 * many
    assert len(normalizer.close(2.0, None)) == many + 1


def test_results_for_calls_that_share_an_id_are_given_in_their_order() -> None:
    uses = [ToolUse("a", f"tool-{n}") for n in range(4)]
    results = [ToolResult("a", "success") for _ in range(4)]
    ended = of_type(normalized(*uses, *results), ToolResult)
    assert [result.name for result in ended] == ["tool-0", "tool-1", "tool-2", "tool-3"]


@pytest.mark.parametrize(
    ("given", "believed"),
    [
        (Usage(input=-5, output=3, coverage="complete"), Usage(output=3, coverage="partial")),
        (Usage(input=10**19, output=0), Usage(output=0, coverage="partial")),
        (Usage(input=1, cache_read=-1), Usage(input=1, coverage="partial")),
        (Usage(input=0, output=10**9), Usage(input=0, output=10**9)),
    ],
)
def test_impossible_usage_is_unknown(given: Usage, believed: Usage) -> None:
    events = normalized("x", TurnEnd(ok=True, usage=given))
    assert done_of(events).usage == believed
    codes = [event.code for event in of_type(events, Error)]
    assert codes == (["implausible_usage"] if given != believed else [])
    reported = normalized("x", UsageReport(given), UsageReport(given), TurnEnd(ok=True))
    assert done_of(reported).usage == believed
    assert len(of_type(reported, Error)) == (given != believed)
    assert all(report.usage == believed for report in of_type(reported, UsageReport))


@pytest.mark.parametrize("usd", [-0.5, float("inf"), float("nan"), 1e300])
def test_an_impossible_cost_is_unknown(usd: float) -> None:
    cost = Cost(usd=usd, source="reported")
    events = normalized("x", UsageReport(Usage(), cost=cost), TurnEnd(ok=True, cost=cost))
    assert done_of(events).cost == Cost()


def test_a_negative_duration_is_measured_instead() -> None:
    events = normalized(ToolUse("1", "x"), ToolResult("1", "success", duration_ms=-7))
    assert of_type(events, ToolResult)[0].duration_ms == 1000


def test_a_file_that_was_written_for_a_call_is_one_change() -> None:
    events = normalized(
        ToolUse("w", name="write_file", kind="edit", paths=("/work/new.txt",)),
        FileChange("/work/new.txt", "created"),
        ToolResult("w", "success"),
        ToolUse("x", name="write_file", kind="edit", paths=("/work/new.txt",)),
        ToolResult("x", "success"),
    )
    changes = [(change.path, change.kind) for change in of_type(events, FileChange)]
    assert changes == [("/work/new.txt", "created"), ("/work/new.txt", "modified")]
