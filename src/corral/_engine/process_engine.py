"""The engine of this process: opened once, shared by all threads and loops, closed by the last.

Theory of operation
-------------------
The library has one instance per process, so a process has at most one engine, on one database. It
works in its own thread and event loop (``Executor``), never in a caller's, which may end at any
time.

Each run and batch is a *user* of the engine while it is within ``used``. It registers first and
opens the engine then (``opened``); at its end it leaves, and closes the engine if no user of that
database is left. ``_changing`` is held while the engine is opened or closed:

* threads that arrive while it opens wait, and share it;
* threads that arrive while it closes wait, and open another;
* it is not closed between the registration of a user and its end.

A caller's loop can be closed while a run waits in it, and a thread can end without closing its
loop. Such a user cannot leave. The engine looks for them every second, does ``on_death`` for them,
and ends if no other user is left. Until then it goes on with their runs; what has not ended by
then can be resumed.

A worker (``corral worker``) is an engine without users: code that it runs may be a user of it, and
never closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine

from corral._engine.dbos.database import Database, find, storage_errors
from corral._engine.worker import executor, run_workflow
from corral._engine.worker.executor import Executor
from corral._system import threads
from corral.errors import ConfigError, CorralError, StorageFailed

POLL = 0.1
"""Seconds between two checks for work, in the engine of a process that waits for its run."""

_changing = threading.Lock()


class EngineUser:
    """A run or batch that uses the engine of this process, in an event loop of its caller."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.on_death: list[Callable[[], Coroutine[None, None, None]]] = []
        """Run in another event loop if this user ends without leaving."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()

    @property
    def is_dead(self) -> bool:
        has_thread = self._loop.is_running() or self._thread.is_alive()
        return self._loop.is_closed() or not has_thread


_users: set[EngineUser] = set()


@contextlib.asynccontextmanager
async def used(db: str | None) -> AsyncGenerator[EngineUser]:
    """Within the block the engine of this process is not closed, if it is on this database. Raises
    ``StorageFailed`` if the engine fails, for example on a full disk; its runs can be resumed."""
    user = EngineUser(find(db))
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    asked = task.cancelling() if task is not None else 0
    failure: CorralError | None = None

    def end() -> None:
        if task is not None and inside:
            task.cancel()

    def failed(database: Database, error: CorralError) -> None:
        nonlocal failure
        if database == user.database:
            failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end)

    inside = True
    _users.add(user)
    try:
        with executor.watched(failed):
            yield user
    except BaseException as error:
        inside = False
        if failure is None or isinstance(error, StorageFailed):
            raise
        is_ours = task is None or not isinstance(error, asyncio.CancelledError)
        if not is_ours and task is not None and task.uncancel() > asked:
            raise  # another task has cancelled it too
        raise failure from None
    finally:
        inside = False
        if not loop.is_closed():  # else nothing can be awaited: the engine removes this user
            _users.discard(user)
            await asyncio.shield(asyncio.to_thread(_close_unused))


async def opened(database: Database) -> Executor:
    """``local`` for async code. If it is cancelled meanwhile, it waits until the engine is open:
    otherwise that could be after its last user has left."""
    opening = asyncio.ensure_future(asyncio.to_thread(local, database))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.gather(opening, return_exceptions=True)
        raise


def local(database: Database, *, poll: float = POLL) -> Executor:
    """The engine of this process, opened if there is none. Blocking. Raises ``ConfigError`` if it
    is on another database."""
    with _changing:
        here = executor.running()
        if here is not None and here.own is not None and here.draining:
            here.stop()  # it has failed, or its users have died: wait for its end
            here = executor.running()
        if here is None:
            here = Executor(database, run_workflow.all_workflows(), poll=poll)
            here.on_sweep.append(_remove_dead_users)
            with storage_errors(database):
                here.start()
        elif here.database != database:
            raise ConfigError(
                f"this process already runs an engine, on {here.database.shown}:"
                f" it cannot run one on {database.shown} at the same time",
                hint="Wait until the runs and batches on the first database have ended, use another"
                " process, or let workers execute this one: --queue (queue=).",
            )
        return here


def close(drain: float = 0.0) -> None:
    """Close the engine of this process. Runs that have not ended can be resumed. Blocking."""
    with _changing:
        here = executor.running()
        if here is not None:
            here.stop(drain)


def _close_unused() -> None:
    with _changing:
        here = executor.running()
        if here is not None and here.own is not None and not _has_users(here.database):
            here.stop()


def _has_users(database: Database) -> bool:
    return any(each.database == database for each in list(_users) if not each.is_dead)


def _remove_dead_users(here: Executor) -> None:
    """In a thread of the engine."""
    dead = {each for each in list(_users) if each.is_dead}
    if not dead or not _changing.acquire(blocking=False):  # it is being closed
        return
    try:
        _users.difference_update(dead)
        for each in (each for user in dead for each in user.on_death):
            with contextlib.suppress(CorralError):  # the engine finds what they left when it ends
                threads.run_event_loop(each())
        if not _has_users(here.database):
            here.begin_draining()
    finally:
        _changing.release()
