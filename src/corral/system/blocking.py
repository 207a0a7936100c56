"""Async work for code that is not async: the one mechanism behind every ``*_sync`` function.

Without a running event loop, the work runs in a new loop in this thread. Inside a running loop, as
in a notebook or a web server, it runs in a loop in another thread, because a running loop cannot be
entered again. This thread waits meanwhile, and so does everything that shares its loop. In a
notebook that is what the user wants. Elsewhere a ``RuntimeWarning`` names the async function to use
instead.

A stream needs a loop that lives longer than one call: ``iterate`` keeps a ``LoopThread`` until the
stream ends. Ctrl-C cancels the work, waits until it has cleaned up, and raises
``KeyboardInterrupt``.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import contextvars
import signal
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from corral.core.tracebacks import short_traceback
from corral.system import threads

P = ParamSpec("P")
T = TypeVar("T")


def sync_twin(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """``function`` for code that is not async: the same arguments, the same result, the name with
    ``_sync``. Its docstring is set afterwards: with one argument, and not as the decorator of
    another function, type checkers preserve the overloads::

        run_sync = sync_twin(run)
        run_sync.__doc__ = "``run`` for code that is not async."
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with short_traceback:
            return blocking(function(*args, **kwargs), function.__name__)

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    return call


def blocking(work: Coroutine[Any, Any, T], name: str = "") -> T:
    """The outcome of async work. ``name`` is the async function that the caller of its twin could
    use inside a loop; without it there is no warning."""
    if not _has_running_loop():
        return threads.run_event_loop(work)
    if name:
        warn_of_blocking(name, stacklevel=4)
    with LoopThread() as thread:
        return thread.run(work)


def iterate(source: AsyncIterator[T], name: str) -> Generator[T]:
    """The values of an async iterator, for code that is not async. Leaving the iteration closes an
    async generator."""
    warn_of_blocking(name, stacklevel=3)
    with LoopThread() as thread:
        yield from thread.iterate(source)


class LoopThread:
    """An event loop in another thread. Close it, or use ``with``."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._failures: list[BaseException] = []
        self._ready = threading.Event()
        # Not thread.join(): interrupted once, it takes the thread for ended (before Python 3.13).
        self._ended = threading.Event()
        threads.start(threading.Thread(target=self._body, name="corral-sync", daemon=True))
        self._ready.wait()
        if self._failures:
            raise self._failures[0]

    def _body(self) -> None:
        try:
            threads.check_descriptors()
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                self._loops.append(loop)
                loop.call_soon(self._ready.set)
                loop.run_forever()
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._ready.set()
            self._ended.set()

    def run(self, work: Awaitable[T]) -> T:
        """The outcome of the work. An interruption cancels it, and is raised when it has ended."""
        outcome: list[T] = []
        failure: list[BaseException] = []
        tasks: list[asyncio.Task[None]] = []
        over = threading.Event()
        loop = self._loops[0]

        async def main() -> None:
            try:
                outcome.append(await work)
            except BaseException as error:
                failure.append(error)

        def begin() -> None:
            task = loop.create_task(main(), context=self._context)
            task.add_done_callback(lambda _: over.set())
            tasks.append(task)

        def cancel() -> None:
            tasks[0].cancel()

        loop.call_soon_threadsafe(begin)
        try:
            with _interruptible():
                over.wait()
        except BaseException:
            loop.call_soon_threadsafe(cancel)
            over.wait()
            raise
        if failure:
            raise failure[0]
        return outcome[0]

    def iterate(self, source: AsyncIterator[T]) -> Generator[T]:
        """The values of an async iterator. Leaving the iteration closes an async generator."""
        with short_traceback:
            try:
                while True:
                    try:
                        value = self.run(anext(source))
                    except StopAsyncIteration:
                        return
                    yield value
            finally:
                if isinstance(source, AsyncGenerator):
                    self.run(source.aclose())

    def close(self) -> None:
        """Cancel what still runs in the loop, and end its thread."""
        loop = self._loops[0]
        with contextlib.suppress(RuntimeError):  # it is closed already
            loop.call_soon_threadsafe(loop.stop)
        self._ended.wait()

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def warn_of_blocking(name: str, *, stacklevel: int) -> None:
    """Inside a running loop, say how to avoid that it waits. A cell of a notebook has nothing else
    to run."""
    if hasattr(builtins, "__IPYTHON__") or not _has_running_loop():
        return
    warnings.warn(
        f"{name}_sync stops the running event loop until it returns."
        f" In async code use {name} without _sync, or call it in a thread:"
        f" await asyncio.to_thread({name}_sync, ...)",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C interrupt this thread. The running loop has its own handler, which would only
    cancel a task that waits for this call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
