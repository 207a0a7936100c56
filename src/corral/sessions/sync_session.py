"""``session_sync`` and ``run_sync``, for code that is not async. The event loop of a session runs
in another thread while it is open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from corral.core.tracebacks import short_traceback
from corral.sessions.api import run, session
from corral.sessions.session import Session
from corral.system.blocking import LoopThread, sync_twin, warn_of_blocking

if TYPE_CHECKING:
    from corral.events import Event
    from corral.sessions.turn import Turn

P = ParamSpec("P")
T = TypeVar("T")


class SyncSession:
    """One agent, one conversation, for code that is not async; made by ``corral.session_sync``.

    ::

        with corral.session_sync("gemini-cli", policy="edits") as session:
            first = session.run("Fix the failing test")
            for event in session.prompt("What did you change?"):
                print(event.type)

    ``run`` and ``prompt`` take the arguments of the same methods of ``Session``. ``prompt`` gives
    the events of the turn. Functions that are passed to the session are called in the other thread.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread: LoopThread | None = None
        self.run = self._twin(session.run)
        """The next turn, to its end: a ``Result``."""
        self.prompt = self._events(session.prompt)
        """The events of the next turn. Leaving the iteration ends the turn."""

    def __repr__(self) -> str:
        return repr(self._session)

    @property
    def id(self) -> str:
        """corral's id of the session, for ``resume``."""
        return self._session.id

    def __enter__(self) -> SyncSession:
        if self._thread is not None:
            raise RuntimeError("the session is open already")
        warn_of_blocking("session", stacklevel=3)
        with short_traceback:
            self._thread = LoopThread()
            try:
                self._thread.run(self._session.__aenter__())
            except BaseException:
                self._close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop().run(self._session.__aexit__())
        finally:
            self._close()

    def _close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError("open the session first: with corral.session_sync(...) as session")
        return self._thread

    def _twin(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            loop = self._loop()
            with short_traceback:
                return loop.run(function(*args, **kwargs))

        return call

    def _events(self, function: Callable[P, Turn]) -> Callable[P, Generator[Event]]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Generator[Event]:
            loop = self._loop()

            async def start() -> Turn:
                return function(*args, **kwargs)

            with short_traceback:
                turn = loop.run(start())
                return loop.iterate(aiter(turn))

        return call


def sync_session_of(function: Callable[P, Session]) -> Callable[P, SyncSession]:
    """``function`` with a session for code that is not async."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> SyncSession:
        with short_traceback:
            return SyncSession(function(*args, **kwargs))

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    return call


session_sync = sync_session_of(session)
session_sync.__doc__ = """
    ``session`` for code that is not async, with the same arguments: a ``with`` block.

    ::

        with corral.session_sync("gemini-cli", policy="edits") as session:
            print(session.run("Fix the failing test").text)
            print(session.run("What did you change?").text)
    """


run_sync = sync_twin(run)
run_sync.__doc__ = """
    ``run`` for code that is not async, with the same arguments; also in a notebook.

    ::

        result = corral.run_sync("gemini-cli", "What does this project do?")
        print(result.text)

    In async code use ``run``: this function stops the running event loop until it returns, and
    warns about it.
    """
