"""The file of a process with many runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from corral._publishing import publisher
from corral._publishing.publisher import Publisher, RunControls
from corral._publishing.records import LiveProcess, LiveRun

MANY = publisher.MANY + 30


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    return Publisher()


def shown(home: Path) -> tuple[str, ...]:
    (file,) = home.rglob("*.json")
    return tuple(run.id for run in msgspec.json.decode(file.read_bytes(), type=LiveProcess).runs)


def add_many(published: Publisher) -> list[publisher.LiveEntry]:
    controls = RunControls(loop=asyncio.get_running_loop())
    runs = (LiveRun(kind="session", id=f"s-{number}") for number in range(MANY))
    return [published.add(run, controls) for run in runs]


async def test_a_file_with_many_runs_is_not_written_for_each_change(
    published: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "INTERVAL", 3600.0)
    entries = add_many(published)
    assert len(shown(tmp_path)) == publisher.MANY
    assert len(published.describe(inputs=True).runs) == MANY, "the socket waits for the file"
    monkeypatch.setattr(publisher, "INTERVAL", 0.0)
    monkeypatch.setattr(publisher, "WRITING_SHARE", 1e-9)
    entries[0].set_idle()
    assert len(shown(tmp_path)) == publisher.MANY, "however long a write takes"
    monkeypatch.setattr(publisher, "WRITING_SHARE", 1e9)
    entries[0].set_idle()
    assert len(shown(tmp_path)) == MANY
    for entry in entries:
        entry.close()
    assert not list(tmp_path.rglob("*.json"))


async def test_a_file_with_many_runs_is_complete_in_the_end(
    published: Publisher, tmp_path: Path
) -> None:
    entries = add_many(published)
    async with asyncio.timeout(60):
        while len(shown(tmp_path)) < MANY:
            await asyncio.sleep(0.01)
    for entry in entries[1:]:
        entry.close()
    async with asyncio.timeout(60):
        while shown(tmp_path) != ("s-0",):
            await asyncio.sleep(0.01)
    entries[0].close()
    assert not list(tmp_path.rglob("*.json"))


async def test_every_change_of_a_few_runs_is_written_at_once(
    published: Publisher, tmp_path: Path
) -> None:
    controls = RunControls(loop=asyncio.get_running_loop())
    first = published.add(LiveRun(kind="session", id="first"), controls)
    second = published.add(LiveRun(kind="session", id="second"), controls)
    assert shown(tmp_path) == ("first", "second")
    first.close()
    assert shown(tmp_path) == ("second",)
    second.close()


async def test_all_that_is_done_later_needs_one_thread(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "INTERVAL", 3600.0)
    before = set(threading.enumerate())
    entries = add_many(published)
    entries[0].set_idle()
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["corral-live"]
    for entry in entries:
        entry.close()


async def test_an_entry_that_is_dropped_is_removed(published: Publisher, tmp_path: Path) -> None:
    entries = add_many(published)
    for entry in entries[1:]:
        entry.drop()
    async with asyncio.timeout(60):
        while shown(tmp_path) != ("s-0",):
            await asyncio.sleep(0.01)
    entries[0].drop()
    async with asyncio.timeout(60):
        while list(tmp_path.rglob("*.json")):
            await asyncio.sleep(0.01)
