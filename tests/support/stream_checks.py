"""``check_stream``: fails unless a list of events is a valid stream."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import settings

from corral.events import Done, Event, Init, ToolOutput, ToolResult, ToolUse, from_json, to_json
from corral.result import result_from_events

no_deadline = settings(deadline=None)
"""Hypothesis' own deadline fails on a busy machine and says nothing about the code."""


def check_streams(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each turn, one after the other, if all are valid streams."""
    turns: list[list[Event]] = []
    for event in events:
        if isinstance(event, Init):
            turns.append([])
        turns[-1].append(event)
    return [check_stream(turn) for turn in turns]


def check_stream(stream: Iterable[Event]) -> list[Event]:
    """Return the events if they are a valid stream; else raise ``AssertionError``."""
    events = list(stream)
    assert events, "the stream is empty: init and done are missing"
    assert isinstance(events[0], Init), f"the first event is {events[0]!r}"
    assert isinstance(events[-1], Done), f"the last event is {events[-1]!r}"
    assert sum(isinstance(event, Init) for event in events) == 1, "init came more than once"
    assert sum(isinstance(event, Done) for event in events) == 1, "done came more than once"
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.run_id for event in events}) == 1
    assert len({event.agent for event in events}) == 1
    assert [event.ts for event in events] == sorted(event.ts for event in events)
    _check_tool_events(events)
    for event in events:
        assert from_json(to_json(event)) == event
    done = events[-1]
    assert (done.status == "success") == (done.error is None)
    assert result_from_events(events).status == done.status
    return events


def _check_tool_events(events: list[Event]) -> None:
    opened: dict[str, str] = {}
    closed: set[str] = set()
    for event in events:
        match event:
            case ToolUse():
                assert event.call_id, f"a tool without an id: {event!r}"
                assert event.call_id not in opened, f"an id twice: {event!r}"
                opened[event.call_id] = event.name
            case ToolOutput():
                assert event.call_id in opened, f"output of no tool: {event!r}"
                assert event.call_id not in closed, f"output of a closed tool: {event!r}"
            case ToolResult():
                assert event.call_id in opened, f"a result of no tool: {event!r}"
                assert event.call_id not in closed, f"two results of one tool: {event!r}"
                assert event.name, f"a result without its tool's name: {event!r}"
                closed.add(event.call_id)
            case _:
                pass
    assert closed == set(opened), f"left open: {set(opened) - closed}"
