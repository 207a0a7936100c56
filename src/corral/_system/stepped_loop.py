"""An event loop in its own thread that runs only when it is asked to, and until all its tasks wait.

Theory of operation
-------------------
``advance`` calls a function in the thread of the loop, which lets tasks go on, and returns when no
task can go on any more, or the main coroutine has ended. Between two calls the thread is blocked.
So what the tasks do depends only on what they are given, one call after another, and not on time:
the same calls give the same order of everything.

How it knows that nothing can go on: asyncio asks its selector to wait without a time limit only if
no callback is ready and no timer runs. The selector of this loop has no files; it reports that the
loop is idle, and blocks until the next call.

Everything that would make the tasks depend on something else is refused with the error that
``refuse`` makes: timers, other threads, sockets and processes.

Crashes: code that never waits blocks the thread. ``advance`` gives up after ``limit`` seconds, with
the place where the code is. The thread cannot be ended; it is a daemon, and dies with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import selectors
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVarTuple, Unpack

from corral._system import threads

Ts = TypeVarTuple("Ts")
TaskFactory = Callable[..., "asyncio.Task[Any]"]
Refuse = Callable[[str], Exception]
"""Makes the error for something that the loop does not do, such as ``a timer``."""
END_ROUNDS = 100
"""How often tasks that are cancelled at the end may go on."""


class Blocked(Exception):
    """The code did not wait in time. ``stack`` says where it is."""

    def __init__(self, stack: traceback.StackSummary) -> None:
        super().__init__("the code did not wait in time")
        self.stack = stack


class SteppedLoop:
    """``main`` makes the main coroutine; it is called in the thread."""

    def __init__(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        *,
        refuse: Refuse,
        task_factory: TaskFactory | None = None,
    ) -> None:
        self._main = main
        self._refuse = refuse
        self._task_factory = task_factory
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._loop: _Loop | None = None
        self.is_over: bool = False
        """Whether the main coroutine has ended."""

    async def advance(self, command: Callable[[], None], limit: float) -> None:
        """Call the function in the thread, and return when the loop is idle again. Raises
        ``Blocked``, ``NoThread`` and ``ProcessFailed``."""
        if self.is_over:
            return
        idle = self._idle = Future()
        idle.set_running_or_notify_cancel()
        if self._thread is None:
            threads.check_descriptors()
            self._thread = threading.Thread(
                target=contextvars.Context().run, args=(self._body,), daemon=True
            )
            threads.start(self._thread)
        self._commands.put(command)
        ended, _ = await asyncio.wait({asyncio.wrap_future(idle)}, timeout=limit)
        if not ended:
            frame = sys._current_frames().get(self._thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
            raise Blocked(traceback.extract_stack(frame))
        idle.result()

    async def close(self, limit: float) -> None:
        """Cancel all tasks, and end the thread if it does so in time."""
        if self._thread is None or self.is_over:
            return

        def cancel() -> None:
            self._is_ending = True
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        with contextlib.suppress(Blocked):
            await self.advance(cancel, limit)

    # In the thread.

    def _body(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.is_over = True
            self._idle.set_exception(error)
        else:
            self.is_over = True
            self._idle.set_result(None)

    def _run(self) -> None:
        loop = self._loop = _Loop(_IdleSelector(self._wait, self._refuse), self._refuse)
        loop.set_task_factory(self._task_factory)
        asyncio.set_event_loop(loop)
        try:
            self._commands.get()()
            with contextlib.suppress(asyncio.CancelledError, _StillWaiting):
                loop.run_until_complete(self._main())
            self._is_ending = True
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            with contextlib.suppress(_StillWaiting):
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def _wait(self) -> None:
        """The loop is idle: wait for the next command."""
        if self._is_ending:  # a task ignores its cancellation
            raise _StillWaiting
        self._idle.set_result(None)
        self._commands.get()()


class _StillWaiting(BaseException):
    """A task still waits at the end."""


class _IdleSelector(selectors.BaseSelector):
    """It has no files but the loop's own, which nobody writes to."""

    def __init__(self, wait: Callable[[], None], refuse: Refuse) -> None:
        self._wait, self._refuse = wait, refuse
        self._keys: dict[object, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._keys:
            raise self._refuse("a socket or a pipe")
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            self._wait()
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _IdleSelector, refuse: Refuse) -> None:
        self._refuse = refuse
        self._thread = threading.get_ident()
        super().__init__(selector)

    def call_later(self, *_args: object, **_options: object) -> NoReturn:
        raise self._refuse("a timer")

    def call_at(self, *_args: object, **_options: object) -> NoReturn:
        raise self._refuse("a timer")

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        self.refuse_thread()

    def refuse_thread(self) -> NoReturn:
        """``threads.blocking`` would start one."""
        raise self._refuse("a thread")

    async def subprocess_exec(self, *_args: object, **_options: object) -> NoReturn:
        raise self._refuse("a process")

    async def subprocess_shell(self, *_args: object, **_options: object) -> NoReturn:
        raise self._refuse("a process")

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise self._refuse("a call from another thread")
        return self.call_soon(callback, *args, context=context)
