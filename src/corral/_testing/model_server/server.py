"""``ModelServer``: an HTTP server that answers like a model vendor, from a script.

Theory of operation
-------------------
The server listens on 127.0.0.1. ``async with`` serves it as a task of the running event loop;
``with`` serves it in a thread with an event loop of its own.

A request is handled in these steps, always in the loop that serves:

1. The path selects a lane: ``/lane/NAME/...``, else the lane ``default``. A lane has a cursor,
   which is its position in its script; lanes do not affect each other.
2. The first wire (Anthropic, Responses, chat completions, Gemini) that knows the path decodes
   the request. It is recorded in ``requests`` before anything else happens.
3. The API key is checked. Any key is accepted unless the server was given one.
4. The cursor takes the first turn that applies; with ``restart``, a new conversation or the end of
   the script starts it over. If there is none, or the turn's ``expect`` does not hold, or the
   script raises, the client gets status 400, which no client retries, and the reason is added to
   ``failures``.
5. Calls get the tool and arguments of the agent that asks (``common_tools``). A call that no tool
   takes is answered with 400 as in step 4, except if a function made the turn.
6. The wire encodes the turn; ``http`` sends it, with the delays and faults of the turn.

Guarantees: ``requests`` and ``failures`` can be read from any thread at any time. Requests are
handled one at a time in the order of arrival, so a script needs no locks. Leaving the context
closes all connections, also those in a scripted hang. If the server crashes, leaving the
context raises its error.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Self
from urllib.parse import quote, unquote

import msgspec

from corral._core.terminal_text import counted
from corral._system.environment import SCRIPTED
from corral._system.threads import LoopThread
from corral._testing.model_server import anthropic, chat, gemini, responses
from corral._testing.model_server.http import BACKLOG, Incoming, ServerResponse, serve
from corral._testing.model_server.request import Request
from corral._testing.model_server.script import Cursor, Restart, Script, Source, Turn, pieces
from corral._testing.model_server.wire import ScriptedWire
from corral.errors import ConfigError

END_TIMEOUT = 10.0
"""Seconds. Ending takes milliseconds. The limit is for bugs: the test must not hang."""


WIRES: Sequence[ScriptedWire] = (anthropic, responses, chat, gemini)
"""The last one also responds to unknown paths."""


class Lane:
    """A script with its own cursor and its own URL.

    ::

        with ModelServer() as server:
            lane = server.lane("first", [say("hello")])
            corral.run_sync("gemini-cli", "Say hello", env=lane.env)
            print(lane.requests)
    """

    def __init__(
        self, server: ModelServer, name: str, source: Source, restart: Restart = "never"
    ) -> None:
        self.name = name
        self._server = server
        turns = source.turns if isinstance(source, Script) else source
        self.cursor: Cursor = Cursor(
            turns, source.restart if isinstance(source, Script) else restart
        )
        self.untaken: str | None = None
        """The call that no tool takes: no further request is answered, as some agents ask again."""
        self._functions: set[str] = set()

    @property
    def url(self) -> str:
        return f"{self._server.url}/lane/{quote(self.name, safe='')}"

    @property
    def env(self) -> dict[str, str]:
        """As ``ModelServer.env``, with the URL of this lane."""
        return _env(self.url, self._server.key)

    @property
    def requests(self) -> list[Request]:
        """The requests to this lane so far."""
        return [request for request in self._server.requests if request.lane == self.name]

    def for_agent(self, turn: Turn, request: Request) -> Turn:
        """The turn with the tool names of the agent that sent the request. Sets ``untaken``, unless
        the turn is made by a function, which may test what the agent does with such a call."""
        if not (turn.calls or self._functions or "{" in "".join(pieces(turn.text))):
            return turn
        from corral._testing.model_server import common_tools

        turn = common_tools.as_typed_output(turn, request)
        calls = [common_tools.translated(call, request) for call in turn.calls]
        if not self.cursor.is_function:
            reasons = [common_tools.why_untaken(call, request) for call in calls]
            if (name := common_tools.unknown_function(request)) in self._functions:
                reasons.append(f"no tool takes the call {name}: the agent has no such tool")
            self.untaken = next(filter(None, reasons), None)
        names = zip(turn.calls, calls, strict=True)
        self._functions |= {call.name for call, made in names if call.name != made.name}
        return msgspec.structs.replace(turn, calls=calls)


class ModelServer:
    """Serves a script on 127.0.0.1. Readable from every thread while it runs.

    ``async with`` serves in the running event loop; ``with`` in a thread, for synchronous tests.
    Leaving closes all connections. Any API key is accepted, but there must be one; with ``key``
    only that one is.

    ::

        with ModelServer([say("hello")]) as server:
            result = corral.run_sync("gemini-cli", "Say hello", env=server.env)
            assert result.text == "hello"
            assert server.failures == []
    """

    def __init__(self, script: Source = (), *, key: str | None = None, port: int = 0) -> None:
        self._source = script
        self._key = key
        # While a text may end with the beginning of a secret, redaction withholds that end: a key
        # like "e4..." would withhold the "e" of "there". Scripted texts rarely end with "_".
        self._default_key = f"_{secrets.token_hex(16)}"
        self._port = port
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._failures: list[str] = []
        self._watchers: list[Callable[[], None]] = []
        self._lanes: dict[str, Lane] = {}
        self._listener: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: LoopThread | None = None

    @property
    def url(self) -> str:
        if self._listener is None:
            raise ConfigError("the model server is not running", hint="Use `with server:`.")
        port: int = self._listener.getsockname()[1]
        return f"http://127.0.0.1:{port}"

    @property
    def key(self) -> str:
        """An API key that the server accepts. The default is random, because corral redacts a key
        wherever it occurs."""
        return self._default_key if self._key is None else self._key

    @property
    def env(self) -> dict[str, str]:
        """Variables that direct the vendors' clients and the agents to this server:
        ``OPENAI_BASE_URL`` and so on, with a key for each."""
        return _env(self.url, self.key)

    @property
    def requests(self) -> list[Request]:
        """Every call of a model so far, in order of arrival."""
        with self._lock:
            return list(self._requests)

    @property
    def failures(self) -> list[str]:
        """Unmet expectations, invalid requests, requests without a turn. Assert it is empty."""
        with self._lock:
            return list(self._failures)

    def lane(self, name: str, script: Source | None = None) -> Lane:
        """The lane ``name``; giving a script makes it start over with that.

        Without a script, it uses the lane of that name in the server's script, else the default.
        """
        with self._lock:
            if script is None and name in self._lanes:
                return self._lanes[name]
            source = self._source if script is None else script
            if script is None and isinstance(source, Script) and name in source.lanes:
                source = source.lanes[name]
            restart = self._source.restart if isinstance(self._source, Script) else "never"
            lane = self._lanes[name] = Lane(self, name, source, restart)
            return lane

    async def wait_for_requests(self, count: int, timeout: float = 60.0) -> list[Request]:
        """The requests, once there are ``count`` of them. Raises ``TimeoutError``."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        watch = self._watch_count(count, lambda: loop.call_soon_threadsafe(arrived.set))
        with watch, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await arrived.wait()
        return self._require_count(count, timeout)

    def wait_for_requests_sync(self, count: int, timeout: float = 60.0) -> list[Request]:
        """The same, for code without a loop. Blocks: not on the loop that serves."""
        arrived = threading.Event()
        with self._watch_count(count, arrived.set):
            arrived.wait(timeout)
        return self._require_count(count, timeout)

    async def __aenter__(self) -> Self:
        listener = self._listen()
        self._task = asyncio.create_task(serve(listener, self._handle), name="corral model server")
        return self

    async def __aexit__(self, *_: object) -> None:
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait([task], timeout=END_TIMEOUT)
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.close()

    def __enter__(self) -> Self:
        thread = LoopThread()
        try:
            thread.run(self.__aenter__())
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self.__aexit__())
            finally:
                thread.close()

    def _listen(self) -> socket.socket:
        if self._listener is not None:
            raise ConfigError("the model server is already running")
        try:
            listener = socket.create_server(("127.0.0.1", self._port), backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on 127.0.0.1:{self._port}: {error.strerror}",
                hint="Choose another port, or 0 for a free one.",
            ) from error
        self._listener = listener
        return listener

    def _handle(self, incoming: Incoming) -> ServerResponse:
        name, incoming = _split_lane(incoming)
        for wire in WIRES:
            received = wire.receive(incoming, name)
            if received is not None:
                break
        else:
            return WIRES[-1].refuse(404, f"Nothing here: {incoming.verb} {incoming.path}")
        key = wire.credential(incoming)
        is_rejected = key is None or (self._key is not None and key != self._key)
        if isinstance(received, ServerResponse):
            if received.status == 400:
                self._add_failure(f"not understood: {incoming.path}: {received.pieces[0].decode()}")
            return wire.refuse_key(key) if is_rejected else received
        lane = self.lane(name)
        with self._lock:
            self._requests.append(received)
            for watcher in self._watchers:
                watcher()
        if is_rejected:
            return wire.refuse_key(key)
        return self._answer(wire, lane, received)

    def _answer(self, wire: ScriptedWire, lane: Lane, request: Request) -> ServerResponse:
        try:
            if lane.untaken is not None:
                return wire.refuse(400, lane.untaken)
            turn = lane.cursor.take(request)
            if turn is None and request.aside:
                turn = wire.unscripted(request)
            if turn is None:
                count = lane.cursor.served
                problem = (
                    f"script exhausted after {counted(count, 'turn')}; add one, or set restart"
                )
                return self._fail(wire, lane, problem, request)
            if turn.expect is not None and (wrong := turn.expect.complaints(request)):
                return self._fail(wire, lane, f"not as expected: {'; '.join(wrong)}", request)
            turn = lane.for_agent(turn, request)
            if lane.untaken is not None:
                return self._fail(wire, lane, lane.untaken, request)
            return wire.reply(request, turn)
        except Exception as error:  # raised by the test's function or by a turn that is not JSON
            return self._fail(wire, lane, f"the script raised {type(error).__name__}: {error}")

    def _fail(
        self, wire: ScriptedWire, lane: Lane, why: str, request: Request | None = None
    ) -> ServerResponse:
        """Answer with 400, the status that no client retries."""
        message = f"{why} (lane {lane.name})"
        self._add_failure(message if request is None else f"{message}: {request!r}")
        return wire.refuse(400, message)

    def _add_failure(self, failure: str) -> None:
        with self._lock:
            self._failures.append(failure)

    @contextlib.contextmanager
    def _watch_count(self, count: int, enough: Callable[[], object]) -> Generator[None, None, None]:
        def check() -> None:
            if len(self._requests) >= count:
                enough()

        with self._lock:
            self._watchers.append(check)
            check()
        try:
            yield
        finally:
            with self._lock:
                self._watchers.remove(check)

    def _require_count(self, count: int, timeout: float) -> list[Request]:
        requests = self.requests
        if len(requests) < count:
            raise TimeoutError(f"{len(requests)} of {count} requests arrived within {timeout:g} s")
        return requests


def _env(url: str, key: str) -> dict[str, str]:
    from corral._agents import registry

    variables: dict[str, str] = {SCRIPTED: "1"}
    for agent in registry.all_agents():
        if agent.probe is not None:
            variables |= agent.probe.env(f"{url}/v1", key)
    for wire in WIRES:
        variables |= wire.env(url, key)
    return variables


def _split_lane(incoming: Incoming) -> tuple[str, Incoming]:
    """The lane named in the path, and the request without it."""
    found = re.match(r"/+lane/([^/?]+)", incoming.target)
    if found is None:
        return "default", incoming
    path = unquote(incoming.target[found.end() :].partition("?")[0])
    return unquote(found[1]), msgspec.structs.replace(incoming, path=path)
