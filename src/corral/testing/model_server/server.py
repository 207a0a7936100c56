"""``ModelServer``: a model behind a real port, saying what its script says."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

import msgspec

from corral.errors import ConfigError
from corral.testing.model_server import anthropic, chat, gemini, responses
from corral.testing.model_server.http import BACKLOG, Incoming, ServerResponse, serve
from corral.testing.model_server.request import Request
from corral.testing.model_server.script import Cursor, Script, Source
from corral.testing.model_server.wire import Wire

END_TIMEOUT = 10.0
"""Ending is a matter of milliseconds; this only keeps a bug from becoming a hang."""


WIRES: Sequence[Wire] = (anthropic, responses, chat, gemini)
"""The last also answers for paths that nobody knows."""


class Lane:
    """A script with a cursor of its own, at an address of its own."""

    def __init__(self, server: ModelServer, name: str, source: Source) -> None:
        self.name = name
        self._server = server
        self.cursor = Cursor(source.turns if isinstance(source, Script) else source)

    @property
    def url(self) -> str:
        return f"{self._server.url}/lane/{quote(self.name, safe='')}"

    @property
    def env(self) -> dict[str, str]:
        """Like the server's, but to this lane."""
        return _env(self.url, self._server.key)

    @property
    def requests(self) -> list[Request]:
        """What arrived on this lane so far."""
        return [request for request in self._server.requests if request.lane == self.name]


class ModelServer:
    """Serves a script on 127.0.0.1. Readable from every thread while it runs.

    ``async with`` serves on the running loop; ``with`` in a thread of its own, for
    synchronous tests. Leaving closes every connection, whatever its client is doing.
    Any key is taken, but there must be one; ``key`` names the only right one.
    """

    def __init__(self, script: Source = (), *, key: str | None = None, port: int = 0) -> None:
        self._source = script
        self._key = key
        self._port = port
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._failures: list[str] = []
        self._watchers: list[Callable[[], None]] = []
        self._lanes: dict[str, Lane] = {}
        self._listener: socket.socket | None = None
        self._end: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        if self._listener is None:
            raise ConfigError("the model server is not running", hint="use `with server:`")
        port: int = self._listener.getsockname()[1]
        return f"http://127.0.0.1:{port}"

    @property
    def key(self) -> str:
        """One that is taken."""
        return "scripted" if self._key is None else self._key

    @property
    def env(self) -> dict[str, str]:
        """Variables that send each vendor's own clients here: ``OPENAI_BASE_URL`` and the like,
        and a key for each."""
        return _env(self.url, self.key)

    @property
    def requests(self) -> list[Request]:
        """Every call of a model so far, in order of arrival."""
        with self._lock:
            return list(self._requests)

    @property
    def failures(self) -> list[str]:
        """Expectations not met, requests not understood or without a turn. Assert it is empty."""
        with self._lock:
            return list(self._failures)

    def lane(self, name: str, script: Source | None = None) -> Lane:
        """The lane ``name``; giving a script makes it start over with that.

        A lane without one plays the script file's lane of that name, or else the default.
        """
        with self._lock:
            if script is None and name in self._lanes:
                return self._lanes[name]
            source = self._source if script is None else script
            if script is None and isinstance(source, Script) and name in source.lanes:
                source = source.lanes[name]
            lane = self._lanes[name] = Lane(self, name, source)
            return lane

    async def wait_for_requests(self, count: int, timeout: float = 10.0) -> list[Request]:
        """The requests, once there are ``count`` of them. Raises ``TimeoutError``."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        watched = self._watched(count, lambda: loop.call_soon_threadsafe(arrived.set))
        with watched, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await arrived.wait()
        return self._at_least(count, timeout)

    def wait_for_requests_sync(self, count: int, timeout: float = 10.0) -> list[Request]:
        """The same, for code without a loop. Blocks: not on the loop that serves."""
        arrived = threading.Event()
        with self._watched(count, arrived.set):
            arrived.wait(timeout)
        return self._at_least(count, timeout)

    async def __aenter__(self) -> Self:
        listener = self._listen()
        self._task = asyncio.create_task(serve(listener, self._handle), name="corral model server")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait([task], timeout=END_TIMEOUT)
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            self._unlisten()

    def __enter__(self) -> Self:
        listener = self._listen()
        started: Future[Callable[[], None]] = Future()
        ended: Future[None] = Future()

        async def life() -> None:
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(serve(listener, self._handle))

            def end() -> None:
                with contextlib.suppress(RuntimeError):  # it crashed, and its loop is closed
                    loop.call_soon_threadsafe(task.cancel)
                ended.result(END_TIMEOUT)

            started.set_result(end)
            await task

        def run() -> None:
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    asyncio.run(life())
            except BaseException as error:  # handed to the thread that leaves
                ended.set_exception(error)
            else:
                ended.set_result(None)

        self._thread = threading.Thread(target=run, name="corral model server", daemon=True)
        self._thread.start()
        self._end = started.result(END_TIMEOUT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._end is not None and self._thread is not None:
                try:
                    self._end()
                finally:
                    self._thread.join(END_TIMEOUT)
        finally:
            self._end = self._thread = None
            self._unlisten()

    def _listen(self) -> socket.socket:
        if self._listener is not None:
            raise ConfigError("the model server is running already")
        try:
            listener = socket.create_server(("127.0.0.1", self._port), backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on 127.0.0.1:{self._port}: {error.strerror}",
                hint="choose another port, or 0 for any that is free",
            ) from error
        self._listener = listener
        return listener

    def _unlisten(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _handle(self, incoming: Incoming) -> ServerResponse:
        name, incoming = _laned(incoming)
        for wire in WIRES:
            received = wire.receive(incoming, name)
            if received is not None:
                break
        else:
            return WIRES[-1].refuse(404, f"Nothing here: {incoming.verb} {incoming.path}")
        key = wire.credential(incoming)
        refused = key is None or (self._key is not None and key != self._key)
        if isinstance(received, ServerResponse):
            if received.status == 400:
                self._note(f"not understood: {incoming.path}: {received.pieces[0].decode()}")
            return wire.refuse_key(key) if refused else received
        lane = self.lane(name)
        self._record(received)
        if refused:
            return wire.refuse_key(key)
        return self._answer(wire, lane, received)

    def _answer(self, wire: Wire, lane: Lane, request: Request) -> ServerResponse:
        try:
            turn = lane.cursor.take(request)
            if turn is None and request.aside:
                turn = wire.unscripted(request)
            if turn is None:
                count = lane.cursor.served
                return self._fail(wire, lane, f"script exhausted after {count} turns", request)
            if turn.expect is not None and (wrong := turn.expect.complaints(request)):
                return self._fail(wire, lane, f"not as expected: {'; '.join(wrong)}", request)
            return wire.reply(request, turn)
        except Exception as error:  # a test's own function, or a turn that is no JSON: serve on
            return self._fail(wire, lane, f"the script raised {type(error).__name__}: {error}")

    def _fail(
        self, wire: Wire, lane: Lane, why: str, request: Request | None = None
    ) -> ServerResponse:
        """400: the one status that no client tries again."""
        message = f"{why} (lane {lane.name})"
        self._note(message if request is None else f"{message}: {request!r}")
        return wire.refuse(400, message)

    def _note(self, failure: str) -> None:
        with self._lock:
            self._failures.append(failure)

    def _record(self, request: Request) -> None:
        with self._lock:
            self._requests.append(request)
            for watcher in self._watchers:
                watcher()

    @contextlib.contextmanager
    def _watched(self, count: int, enough: Callable[[], object]) -> Generator[None, None, None]:
        def look() -> None:
            if len(self._requests) >= count:
                enough()

        with self._lock:
            self._watchers.append(look)
            look()
        try:
            yield
        finally:
            with self._lock:
                self._watchers.remove(look)

    def _at_least(self, count: int, timeout: float) -> list[Request]:
        requests = self.requests
        if len(requests) < count:
            raise TimeoutError(f"{len(requests)} of {count} requests came within {timeout:g} s")
        return requests


def _env(url: str, key: str) -> dict[str, str]:
    return {name: value for wire in WIRES for name, value in wire.env(url, key).items()}


def _laned(incoming: Incoming) -> tuple[str, Incoming]:
    """The lane of a path, and the call without it."""
    found = re.match(r"/+lane/([^/?]+)", incoming.target)
    if found is None:
        return "default", incoming
    path = unquote(incoming.target[found.end() :].partition("?")[0])
    return unquote(found[1]), msgspec.structs.replace(incoming, path=path)
