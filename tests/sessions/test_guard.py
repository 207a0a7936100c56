"""Whatever an agent writes, what comes out is lawful."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import lawful, unhurried

from corral import errors
from corral.content import Cost, Usage
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
from corral.sessions import guard as guards
from corral.sessions.guard import Guard
from corral.wire.stream import Finish, Item


def new_guard(**more: Callable[[str], bool | None]) -> Guard:
    init = Init(
        run_id="run-1", agent="an-agent", cwd="/work", model="m-asked", agent_version="1.2.3"
    )
    return Guard(init, started=100.0, **more)


def whole(*items: Item, error: errors.CorralError | None = None) -> list[Event]:
    """The stream that these items become, lawful or the test fails."""
    guard = new_guard()
    events: list[Event] = []
    for number, item in enumerate(items):
        events += guard.take([item], 101.0 + number)
    return lawful([*events, *guard.close(200.0, error)])


def done_of(events: list[Event]) -> Done:
    done = events[-1]
    assert isinstance(done, Done)
    return done


def of_type[E: Event](events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]
