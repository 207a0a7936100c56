"""Several streams read as one: order, fairness, read-ahead, and cleanup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from support.scripted_agent import GOOD, child_pids, scripted_options

import corral
from corral import errors
from corral.events import Done, Init, Text


class Numbers:
    """An async iterator that counts how often it was asked, and whether it was closed."""

    def __init__(self, name: str, count: int, fails_at: int | None = None) -> None:
        self.name = name
        self.asked = 0
        self.closed = False
        self._count = count
        self._fails_at = fails_at

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        self.asked += 1
        if self.asked == self._fails_at:
            raise ValueError(f"{self.name} failed")
        if self.asked > self._count:
            raise StopAsyncIteration
        return f"{self.name}{self.asked}"

    async def aclose(self) -> None:
        self.closed = True


class Silent(Numbers):
    """One that never yields."""

    def __init__(self) -> None:
        super().__init__("silent", 0)
        self.cancelled = False
        self.waiting = asyncio.Event()

    async def __anext__(self) -> str:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise StopAsyncIteration


async def test_streams_take_turns_and_keep_their_order() -> None:
    merged = [each async for each in corral.merge(Numbers("a", 4), Numbers("b", 2))]
    assert merged == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_no_streams_are_an_empty_stream() -> None:
    streams: list[Numbers] = []
    assert [each async for each in corral.merge(*streams)] == []


async def test_no_more_than_one_item_of_a_stream_is_read_ahead() -> None:
    a, b = Numbers("a", 1000), Numbers("b", 1000)
    async with aclosing(corral.merge(a, b)) as merged:
        consumed = 0
        async for _ in merged:
            consumed += 1
            for _ in range(20):  # a slow reader
                await asyncio.sleep(0)
            assert a.asked + b.asked <= consumed + 2
            if consumed == 50:
                break
    assert a.closed
    assert b.closed


async def test_a_silent_stream_does_not_block_another() -> None:
    silent = Silent()
    async with aclosing(corral.merge(silent, Numbers("a", 3))) as merged:
        assert [await anext(merged) for _ in range(3)] == ["a1", "a2", "a3"]
    assert silent.cancelled
    assert silent.closed


async def test_an_error_of_one_stream_is_raised_and_the_rest_is_closed() -> None:
    silent, other = Silent(), Numbers("b", 1000)
    with pytest.raises(ValueError, match="a failed"):
        async for _ in corral.merge(Numbers("a", 5, fails_at=3), silent, other):
            pass
    assert silent.cancelled
    assert other.closed


async def test_a_reader_that_is_cancelled_closes_all() -> None:
    silent = Silent()

    async def read() -> None:
        async for _ in corral.merge(silent):
            pass

    task = asyncio.create_task(read())
    await silent.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert silent.cancelled
    assert silent.closed


async def test_a_stream_that_fails_to_close_does_not_keep_the_others_open() -> None:
    class Stuck(Silent):
        async def aclose(self) -> None:
            raise ValueError("cannot close")

    class Slow(Silent):
        async def aclose(self) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            self.closed = True

    other = Slow()
    merged = corral.merge(Stuck(), other, Numbers("a", 1))
    await anext(merged)
    with pytest.raises(ValueError, match="cannot close"):
        await merged.aclose()
    assert other.closed


def test_a_value_that_is_not_a_stream_is_refused(workspace: Path) -> None:
    session = corral.session("gemini-cli", **scripted_options(workspace))
    with pytest.raises(errors.ConfigError, match="got: Session") as caught:
        corral.merge(cast("Any", session))
    assert "one.prompt(" in (caught.value.hint or "")
    one = Numbers("a", 1)
    with pytest.raises(errors.ConfigError, match="same stream twice"):
        corral.merge(one, one)


async def test_turns_of_several_sessions_come_as_one_stream(workspace: Path) -> None:
    options = scripted_options(workspace, track_files=False)
    async with (
        corral.session("gemini-cli", **options) as one,
        corral.session("gemini-cli", **options) as two,
    ):
        turns = one.prompt("init\ntext one\nresult"), two.prompt("init\ntext two\nresult")
        events = [event async for event in corral.merge(*turns)]
    reported = {run_id: [e for e in events if e.run_id == run_id] for run_id in _runs(events)}
    for mine in reported.values():
        assert [type(event) for event in mine] == [Init, Text, Done]
        assert [event.seq for event in mine] == [1, 2, 3]
    assert sorted(corral.result_from_events(mine).text for mine in reported.values()) == [
        "one",
        "two",
    ]


def _runs(events: list[corral.Event]) -> list[str]:
    return list(dict.fromkeys(event.run_id for event in events))


@pytest.mark.deep
async def test_closing_it_ends_the_agents(workspace: Path) -> None:
    options = scripted_options(workspace, track_files=False)
    async with (
        corral.session("gemini-cli", **options) as one,
        corral.session("gemini-cli", **options) as two,
    ):
        hanging = one.prompt("init\nsleep 300"), two.prompt("init\nsleep 300")
        async with aclosing(corral.merge(*hanging)) as events:
            seen: set[str] = set()
            async for event in events:
                seen.add(event.run_id)
                if len(seen) == 2:
                    assert len(child_pids()) >= 2
                    break
        assert child_pids() == []
        assert (await one.run(GOOD)).text == "hello"  # the session goes on


async def test_one_agent_that_cannot_start_ends_the_other(workspace: Path) -> None:
    options = scripted_options(workspace, track_files=False)
    async with corral.session("gemini-cli", **options) as one:

        async def broken() -> AsyncGenerator[corral.Event, None]:
            raise errors.NotInstalled("no such program")
            yield

        with pytest.raises(errors.NotInstalled):
            async for _ in corral.merge(one.prompt("init\nsleep 300"), broken()):
                pass
        assert child_pids() == []
