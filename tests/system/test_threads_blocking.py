"""The functions for code that is not async: with and without a running event loop."""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import inspect
import threading
import warnings
from collections.abc import AsyncGenerator, Callable

import pytest

import corral
from corral import models, pipelines, runs
from corral._system.threads import LoopThread, blocking, iterate, sync_twin

TWINS = [
    (corral, "run"),
    (corral, "batch"),
    (corral, "session"),
    *((models, name) for name in ("generate", "generate_object", "stream")),
    (pipelines, "run"),
    *((runs, name) for name in ("answer", "cancel", "resume", "fork", "budget")),
]


@pytest.mark.parametrize(
    ("module", "name"), TWINS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_twin_has_the_parameters_of_its_function(module: object, name: str) -> None:
    function, twin = getattr(module, name), getattr(module, f"{name}_sync")
    assert inspect.signature(twin).parameters == inspect.signature(function).parameters
    assert twin.__name__ == f"{name}_sync"
    assert not inspect.iscoroutinefunction(twin)


async def where() -> threading.Thread:
    await asyncio.sleep(0)
    return threading.current_thread()


def test_without_a_loop_the_work_runs_in_this_thread() -> None:
    assert blocking(where(), "where") is threading.current_thread()


async def test_inside_a_loop_the_work_runs_in_another_thread() -> None:
    with pytest.warns(RuntimeWarning, match=r"asyncio\.to_thread\(where_sync, \.\.\.\)"):
        assert blocking(where(), "where") is not threading.current_thread()


async def test_a_notebook_gets_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert blocking(where(), "where") is not threading.current_thread()


async def test_the_alternative_of_the_warning_does_not_stop_the_loop() -> None:
    released = threading.Event()

    async def wait() -> str:
        await asyncio.to_thread(released.wait, 60)
        return "done"

    twin = sync_twin(wait)
    call = asyncio.create_task(asyncio.to_thread(twin))
    await asyncio.sleep(0)  # the loop runs on while the call waits
    released.set()
    assert await call == "done"


async def test_the_error_of_the_work_is_raised_in_another_thread_too() -> None:
    async def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit, match="3"), pytest.warns(RuntimeWarning):
        blocking(fail(), "fail")


value: contextvars.ContextVar[str] = contextvars.ContextVar("value", default="none")


def test_the_loop_of_a_thread_sees_the_context_of_its_caller_and_ends() -> None:
    async def read() -> str:
        return value.get()

    value.set("mine")
    before = threading.active_count()
    with LoopThread() as thread:
        assert thread.run(read()) == "mine"
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_a_stream_is_closed_when_the_iteration_is_left() -> None:
    closed: list[threading.Thread] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(threading.current_thread())

    before = threading.active_count()
    assert list(iterate(numbers(), "numbers")) == list(range(10))
    stream = iterate(numbers(), "numbers")
    assert next(stream) == 0
    stream.close()
    assert len(closed) == 2
    assert threading.active_count() == before


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_an_interruption_while_the_work_begins_ends_it_before_it_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def values() -> AsyncGenerator[int]:
        await asyncio.sleep(60)
        yield 1

    with LoopThread() as thread:
        loop = thread.run(running_loop())
        schedule = loop.call_soon_threadsafe

        def interrupted(callback: Callable[[], None]) -> None:
            monkeypatch.undo()
            schedule(callback)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(thread.iterate(values()))  # closing it fails while it still runs


def test_an_interruption_before_the_work_begins_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def values() -> AsyncGenerator[int]:
        yield 1

    with LoopThread() as thread:
        loop = thread.run(running_loop())

        def interrupted(_callback: Callable[[], None]) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(thread.iterate(values()))
