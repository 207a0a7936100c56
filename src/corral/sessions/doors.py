"""The ways in: ``session``, ``run``, ``run_sync``, ``available``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from corral import agents
from corral.errors import CorralError
from corral.events import Event
from corral.io import config, programs
from corral.options import Run
from corral.result import Fold, Result
from corral.sessions.session import Session

if TYPE_CHECKING:
    from corral.keywords import Options

T = TypeVar("T")


def session(agent: str = "gemini-cli", **options: Unpack[Options]) -> Session:
    """A conversation with an agent, as ``async with``; see ``Options`` for the names."""
    return Session(agent, cast("dict[str, Any]", options))


async def run(
    agent: str,
    prompt: str | None = None,
    *,
    check: bool = False,
    on_event: Callable[[Event], None] | None = None,
    **options: Unpack[Options],
) -> Result:
    """One prompt to its end.

    The result says how it went: look at ``result.ok``, or give ``check=True`` to
    have anything but a success raised as its own error. What is wrong with the
    call itself is raised in any case, before anything is spent or spawned.
    """
    async with session(agent, **options) as opened:
        turn = opened.prompt(prompt)
        if on_event is None:
            result = await turn.collect()
        else:
            folding = Fold()
            async for event in turn:
                folding.add(event)
                on_event(event)
            result = folding.result()
    return result.raise_for_status() if check else result


def run_sync(
    agent: str,
    prompt: str | None = None,
    *,
    check: bool = False,
    on_event: Callable[[Event], None] | None = None,
    **options: Unpack[Options],
) -> Result:
    """``run`` for code that is not async; also inside a running loop, as in a notebook."""
    return _blocking(run(agent, prompt, check=check, on_event=on_event, **options))


def available(agent: str) -> bool:
    """Whether the agent's program is here and new enough. Starts nothing expensive."""
    found = agents.find(agent)
    try:
        programs.locate(found, Run.build(found.name, {}, config.load(found.name)).program)
    except CorralError:
        return False
    return True


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return _in_a_thread(work)


def _in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """A loop runs here already and cannot be entered again: take another thread, and pass
    an interruption of this one on to it."""
    outcome: list[T] = []
    failure: list[BaseException] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> None:
        task = asyncio.current_task()
        if task is not None:
            started.append((asyncio.get_running_loop(), task))
        outcome.append(await work)

    def body() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, name="corral-run-sync", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        for loop, task in started:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]
