"""A turn notices that the service of its model cannot be reached, and never claims it falsely."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from corral._protocol.ndjson import RawEvent
from corral._sessions import deadlines
from corral._sessions.deadlines import NetworkWatch
from corral.errors import AuthenticationFailed, CorralError, NetworkFailed, ServerFailed
from corral.events import Error, Log


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_SILENCE", "LATER_SILENCE", "INTERVAL"):
        monkeypatch.setattr(deadlines, name, 0.01)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


class OneTurn:
    """What the watch tells its turn."""

    def __init__(self) -> None:
        self.warnings: list[Error] = []
        self.error: CorralError | None = None
        self.changed = asyncio.Event()

    def emit(self, item: RawEvent) -> None:
        assert isinstance(item, Error)
        self.warnings.append(item)
        self.changed.set()

    def fail(self, error: CorralError) -> None:
        self.error = error
        self.changed.set()

    def watch(self, port: int, attempts: int = 3) -> NetworkWatch:
        return NetworkWatch(f"http://127.0.0.1:{port}", attempts, self.emit, self.fail)

    async def wait(self) -> None:
        async with asyncio.timeout(60):
            await self.changed.wait()
        self.changed.clear()


async def test_one_warning_and_then_the_turn_ends(closed_port: int) -> None:
    turn = OneTurn()
    watch = turn.watch(closed_port)
    await turn.wait()
    assert turn.error is None
    assert [(w.code, w.level, w.recoverable) for w in turn.warnings] == [
        ("unreachable", "warning", True)
    ]
    await turn.wait()
    assert isinstance(turn.error, NetworkFailed)
    assert f"127.0.0.1:{closed_port}" in turn.error.message
    assert len(turn.warnings) == 1
    await watch.stop()


async def test_messages_of_the_agent_itself_do_not_count_as_the_model(closed_port: int) -> None:
    turn = OneTurn()
    watch = turn.watch(closed_port)
    watch.on_items([Log("started"), Error("retrying", "again", recoverable=True)])
    await turn.wait()
    await turn.wait()
    assert isinstance(turn.error, NetworkFailed)
    await watch.stop()


async def test_a_turn_that_has_heard_the_model_goes_on(closed_port: int) -> None:
    turn = OneTurn()
    watch = turn.watch(closed_port, attempts=1)
    watch.on_items(["some text"])
    await turn.wait()
    await asyncio.sleep(0.2)  # many attempts
    assert turn.error is None
    assert len(turn.warnings) == 1
    response = ServerFailed("500")
    assert watch.cause_of(response) is response
    await watch.stop()


async def test_a_slow_model_that_can_be_reached_is_not_blamed() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        turn = OneTurn()
        watch = turn.watch(listener.getsockname()[1])
        listener.settimeout(60)
        for _ in range(4):
            accepted, _ = await asyncio.to_thread(listener.accept)
            accepted.close()
        await watch.stop()
    assert (turn.warnings, turn.error) == ([], None)


async def test_a_vague_error_of_the_agent_gets_the_real_cause(closed_port: int) -> None:
    turn = OneTurn()
    watch = turn.watch(closed_port, attempts=1000)
    before = ServerFailed("fetch failed")
    assert watch.cause_of(before) is before
    await turn.wait()
    assert isinstance(watch.cause_of(before), NetworkFailed)
    clear = AuthenticationFailed("wrong key")
    assert watch.cause_of(clear) is clear
    assert watch.cause_of(None) is None
    await watch.stop()


@pytest.mark.deep
async def test_a_watch_does_not_keep_its_turn_alive(closed_port: int) -> None:
    import gc
    import weakref

    turn = OneTurn()
    watch, gone = turn.watch(closed_port), weakref.ref(turn)
    del turn
    gc.collect()
    assert gone() is None
    await asyncio.sleep(0.1)
    await watch.stop()
