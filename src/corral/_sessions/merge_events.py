"""Several streams of events read as one.

Theory of operation. Each stream has a source. A source that has nothing to hand out has one task
that waits for the stream's next batch; a source that still has events of its last batch has none.
So at most one batch of each stream is read ahead (of a turn: what one read of the agent's output
gave; of any other iterable: one item), and a slow reader slows every agent.

The sources take turns: after an event of one of them, the others that have events are asked first.

The merged stream owns its streams. When it ends early (it is closed, its reader is cancelled, or a
stream raises), the tasks are cancelled and awaited, and every stream that has not ended is closed:
the agent of a turn is ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, Generic, TypeVar

from corral._sessions.turn import Turn
from corral.errors import ConfigError

T = TypeVar("T")


def merge(*streams: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """The events of several turns (or any async iterables) in one stream, as they come.

    ::

        from contextlib import aclosing

        async with aclosing(corral.merge(one.prompt("…"), two.prompt("…"))) as events:
            async for event in events:
                print(event.label, event)

    Events of one stream keep their order. The streams take turns, so that a busy one does not hold
    up the others, and no more than one batch of each is read ahead. The merged stream ends when all
    have ended. If a stream raises, the error is raised here; then, and when the merged stream is
    closed or its reader is cancelled, the streams that have not ended are closed and their agents
    are ended. Use ``contextlib.aclosing`` where the loop may be left early.

    Raises ``ConfigError`` for something that is not a stream, and for a stream given twice.
    """
    for number, stream in enumerate(streams):
        if not isinstance(stream, AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"merge takes streams of events, got: {type(stream).__name__}",
                hint="Give it turns: corral.merge(one.prompt(…), two.prompt(…)).",
            )
        if any(stream is other for other in streams[:number]):
            raise ConfigError("merge was given the same stream twice")
    return _merged(deque(_Source(stream) for stream in streams))


async def _merged(sources: deque[_Source[T]]) -> AsyncGenerator[T, None]:
    try:
        while sources:
            source = next((source for source in sources if source.collect()), None)
            if source is None:
                tasks = [source.task for source in sources if source.task is not None]
                await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
                continue
            sources.remove(source)
            if not source.is_over:
                sources.append(source)  # the others come first now
                yield source.batch.popleft()
    finally:
        tasks = [source.task for source in sources if source.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # One that fails to close must not keep the others from it.
        outcomes = await asyncio.gather(*(s.close() for s in sources), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


class _Source(Generic[T]):
    """One stream: what of it is ready, or the task that waits for more."""

    def __init__(self, stream: AsyncIterable[T]) -> None:
        self._stream = stream
        self._turn: Turn | None = stream if isinstance(stream, Turn) else None
        self._items = stream.__aiter__()
        self.batch: deque[T] = deque()
        self.task: asyncio.Task[list[T]] | None = None
        self.is_over = False

    def collect(self) -> bool:
        """Whether there is an event, or the stream has ended; if neither, a task waits for it.
        Raises what the stream raised."""
        if self.batch:
            return True
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._next_batch())
        if not self.task.done():
            return False
        task, self.task = self.task, None
        self.batch.extend(task.result())
        self.is_over = not self.batch
        return True

    async def _next_batch(self) -> list[Any]:
        if self._turn is not None:
            return await self._turn.next_batch()
        try:
            return [await anext(self._items)]
        except StopAsyncIteration:
            return []

    async def close(self) -> None:
        if self._turn is not None:
            await self._turn.close()
        elif (aclose := getattr(self._items, "aclose", None)) is not None:
            await aclose()
