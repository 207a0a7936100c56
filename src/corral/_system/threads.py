"""Start threads and event loops, and run async work for code that is not async.

If the machine has no threads or descriptors left, a clear error is raised.

Async work for other code (``sync_twin``, ``blocking``, ``iterate``) is the one mechanism behind
every ``*_sync`` function. Without a running event loop, the work runs in a new loop in this thread.
Inside a running loop, as in a notebook or a web server, it runs in a loop in another thread,
because a running loop cannot be entered again. This thread waits meanwhile, and so does everything
that shares its loop. In a notebook that is what the user wants. Elsewhere a ``RuntimeWarning``
names the async function to use instead.

A stream needs a loop that lives longer than one call: ``iterate`` keeps a ``LoopThread`` until the
stream ends. Ctrl-C cancels the work, waits until it has cleaned up, and raises
``KeyboardInterrupt``.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import contextvars
import errno
import select
import signal
import socket
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from corral._core.display import short_traceback
from corral.errors import ProcessFailed, no_event_loop_error

P = ParamSpec("P")
T = TypeVar("T")
AsyncFunction = TypeVar("AsyncFunction", bound=Callable[..., Coroutine[Any, Any, object]])

_REFUSED = "can't start new thread"
"""The message of Python's ``RuntimeError``."""


class NoThread(ProcessFailed):
    """No more threads can be started."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``asyncio.to_thread``. Raises ``NoThread`` if no thread can be started."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise no_thread_error(error) from error


async def in_own_thread(function: Callable[[], T]) -> T:
    """The result of the function, called in a new thread that is not waited for once this call is
    cancelled.

    The threads of the loop's own pool are waited for when the loop ends: one function that hangs
    would hang the program. Raises ``NoThread``.
    """
    context = contextvars.copy_context()
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel the function

    def body() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as error:
            # A StopIteration cannot pass through a future.
            odd = isinstance(error, StopIteration | KeyboardInterrupt)
            future.set_exception(RuntimeError(repr(error)) if odd else error)

    start(threading.Thread(target=body, name="corral-tool", daemon=True))
    return await asyncio.wrap_future(future)


def start(thread: threading.Thread) -> None:
    """``thread.start()``. Raises ``NoThread``."""
    try:
        thread.start()
    except RuntimeError as error:
        if not is_thread_limit(error):
            raise
        raise no_thread_error(error) from error


def is_thread_limit(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _REFUSED in str(error)


def no_thread_error(error: BaseException) -> NoThread:
    return NoThread(
        f"cannot start a thread: {error}",
        hint="too many processes or too little memory: raise `ulimit -u` or run fewer at a time",
        phase="spawn",
        retryable=True,
    )


def run_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``. Raises ``ProcessFailed`` if there are too few descriptors for a loop."""
    try:
        check_descriptors()
    except BaseException:
        work.close()
        raise
    return asyncio.run(work)


def check_descriptors() -> None:
    """Raise ``ProcessFailed`` if an event loop cannot get its descriptors.

    Python does not clean up a loop that gets only some of them: it prints tracebacks when such a
    loop is collected. So they are opened here once before.
    """
    try:
        ends = socket.socketpair()
        try:
            if hasattr(select, "epoll"):
                select.epoll().close()
        finally:
            for end in ends:
                end.close()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ProcessFailed(
            f"cannot start an event loop: {error.strerror}",
            hint="too many open files: raise `ulimit -n` or run fewer at a time",
            phase="spawn",
            retryable=True,
        ) from error


def sync_twin(function: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """``function`` for code that is not async: the same arguments, the same result, the name with
    ``_sync``. Its docstring says so, with the example at the end of that of ``function``."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            return await function(*args, **kwargs)

        with short_traceback:
            return blocking(work(), function.__name__)

    name = function.__name__
    call.__name__ = call.__qualname__ = f"{name}_sync"
    _, has_example, example = (function.__doc__ or "").rpartition("    ::\n")
    sync_example = example.replace("await ", "").replace(f"{name}(", f"{name}_sync(")
    call.__doc__ = f"``{name}`` for code that is not async, with the same arguments."
    if has_example:
        call.__doc__ += f"\n\n    ::\n{sync_example}"
    return call


def blocking(work: Coroutine[Any, Any, T], name: str = "") -> T:
    """The outcome of async work. ``name`` is the async function that the caller of its twin could
    use inside a loop; without it there is no warning."""
    if _running_loop() is None:
        return run_event_loop(work)
    try:
        require_threads()
    except BaseException:
        work.close()
        raise
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
        require_threads()
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        # Not thread.join(): interrupted once, it takes the thread for ended (before Python 3.13).
        self._ended = threading.Event()
        start(threading.Thread(target=self._body, name="corral-sync", daemon=True))
        self._loop = self._ready.result()

    def _body(self) -> None:
        try:
            check_descriptors()
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                loop.call_soon(self._ready.set_result, loop)
                loop.run_forever()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._ended.set()

    def run(self, work: Awaitable[T], context: contextvars.Context | None = None) -> T:
        """The outcome of the work, in the context of the caller. An interruption cancels it, and is
        raised when it has ended."""
        context = contextvars.copy_context() if context is None else context
        outcome: list[T] = []
        failure: list[BaseException] = []
        tasks: list[asyncio.Task[None]] = []
        over = threading.Event()
        loop = self._loop

        async def main() -> None:
            try:
                outcome.append(await work)
            except BaseException as error:
                failure.append(error)

        def begin() -> None:
            task = loop.create_task(main(), context=context)
            task.add_done_callback(lambda _: over.set())
            tasks.append(task)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interruption came before the work began
                over.set()

        try:
            # An interruption may also come while the call below returns: the work has started then,
            # and must be over before this function is left.
            loop.call_soon_threadsafe(begin)
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
        context = contextvars.copy_context()  # a generator must not change it on the way
        with short_traceback:
            try:
                while True:
                    try:
                        value = self.run(anext(source), context)
                    except StopAsyncIteration:
                        return
                    yield value
            finally:
                if isinstance(source, AsyncGenerator):
                    self.run(source.aclose(), context)

    def close(self) -> None:
        """Cancel what still runs in the loop, and end its thread."""
        loop = self._loop
        with contextlib.suppress(RuntimeError):  # it is closed already
            loop.call_soon_threadsafe(loop.stop)
        self._ended.wait()

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def require_threads() -> None:
    """Raise if the running event loop refuses other threads, as ``SteppedLoop`` does."""
    refuse: object = getattr(_running_loop(), "refuse_thread", None)
    if callable(refuse):
        refuse()


def warn_of_blocking(name: str, *, stacklevel: int) -> None:
    """Inside a running loop, say how to avoid that it waits. A cell of a notebook has nothing else
    to run."""
    if hasattr(builtins, "__IPYTHON__") or _running_loop() is None:
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


def short_traceback_async(function: AsyncFunction) -> AsyncFunction:
    """``@short_traceback`` for async functions. They raise ``ConfigError`` in trio."""

    @wraps(function)
    async def call(*args: object, **kwargs: object) -> object:
        with short_traceback:
            require_event_loop()
            return await function(*args, **kwargs)

    # The type is that of the function: for pyright, a context manager must return a CoroutineType,
    # which mypy does not know to be the type of a call.
    return cast("AsyncFunction", call)


def require_event_loop() -> None:
    """Raise ``ConfigError`` before anything is started, if the event loop of asyncio does not run
    here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise no_event_loop_error() from None
