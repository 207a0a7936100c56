"""The ways in: ``session``, ``pool``, ``run``, ``run_sync``, ``available``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from msgspec.structs import replace

from corral import agents
from corral.agents import DEFAULT_AGENT
from corral.errors import CorralError, RemoteError
from corral.events import Event
from corral.io import config, programs
from corral.options import Run
from corral.result import Fold, Result
from corral.sessions.broker import Asker
from corral.sessions.pool import Pool
from corral.sessions.session import Session

if TYPE_CHECKING:
    from corral.keywords import Options

T = TypeVar("T")


def session(
    agent: str = DEFAULT_AGENT,
    *,
    ask: Asker | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    **options: Unpack[Options],
) -> Session:
    """A conversation with an agent, as ``async with``; see ``Options`` for the names.

    ``ask`` answers the agent's permission questions, where it can ask: it is given the
    ``permission_request`` and returns ``allow_once``, ``allow_session``, ``deny`` or
    ``cancel``. Without it, what the policy leaves open is denied. ``tools`` are Python
    functions, sync or async, that the agent may call.
    """
    return Session(agent, cast("dict[str, Any]", options), ask, tools)


def pool(
    agent: str = DEFAULT_AGENT,
    *,
    size: int = 1,
    prompts_at_once: int = 4,
    ask: Asker | None = None,
    **options: Unpack[Options],
) -> Pool:
    """Warm processes for many prompts, as ``async with``: ``await pool.run("…", cwd=…)``."""
    return Pool(
        agent,
        cast("dict[str, Any]", options),
        size=size,
        prompts_at_once=prompts_at_once,
        ask=ask,
    )


async def run(
    agent: str,
    prompt: str | None = None,
    *,
    check: bool = False,
    on_event: Callable[[Event], None] | None = None,
    ask: Asker | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    output: Any = None,
    repairs: int = 2,
    **options: Unpack[Options],
) -> Result:
    """One prompt to its end.

    The result says how it went: look at ``result.ok``, or give ``check=True`` to
    have anything but a success raised as its own error. What is wrong with the
    call itself is raised in any case, before anything is spent or spawned.

    With ``output``, a type or a JSON Schema, ``result.output`` is a value of it: what
    does not fit is repaired in the same session at most ``repairs`` times, and then
    the result is an error, never a success without a value.
    """
    if output is not None:
        from corral.sessions.output import wanted

        wanted(output)  # a schema that cannot be met is told before anything starts
    async with session(agent, ask=ask, tools=tools, **options) as opened:

        async def one(text: str | None) -> Result:
            folding = Fold()
            async for event in opened.prompt(text):
                folding.add(event)
                if on_event is not None:
                    on_event(event)
            return folding.result()

        if output is None:
            result = await one(prompt)
        else:
            result = await _typed(one, opened.whole_prompt(prompt), output, repairs)
    return result.raise_for_status() if check else result


def run_sync(
    agent: str,
    prompt: str | None = None,
    *,
    check: bool = False,
    on_event: Callable[[Event], None] | None = None,
    ask: Asker | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    output: Any = None,
    repairs: int = 2,
    **options: Unpack[Options],
) -> Result:
    """``run`` for code that is not async; also inside a running loop, as in a notebook."""
    work = run(
        agent,
        prompt,
        check=check,
        on_event=on_event,
        ask=ask,
        tools=tools,
        output=output,
        repairs=repairs,
        **options,
    )
    return _blocking(work)


async def _typed(
    one: Callable[[str], Awaitable[Result]], prompt: str, output: Any, repairs: int
) -> Result:
    from corral.sessions.output import typed

    try:
        return (await typed(one, prompt, output, repairs=repairs))[1]
    except RemoteError as error:
        failed: Result | None = error.result
        if failed is None:
            raise
        return replace(failed, status=error.status, error=error.event(), output=None)


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
