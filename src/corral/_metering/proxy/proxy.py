"""The model proxy: an HTTP server on this machine that one agent uses as the API of its model.

Theory of operation
-------------------
The agent is started with the URL of this proxy instead of the vendor's, and with a dummy key. A
request must contain that key, so no other user of the machine can use the proxy. It is sent to the
vendor with the real key, over one connection for each connection of the agent. The agent never has
the real key: it is sent in the place where the vendor's API expects it and nowhere else
(``request_check``), and a response that contains it is cut (``KeyScan``).

Nothing is translated. Of a request, only authentication, ``Host``, ``Accept-Encoding``, compression
and the headers that concern one connection are changed; all others keep their order. A target that
servers could read in several ways is refused; the others are sent as they were checked
(``parse_target``). The bytes of a response are passed on as they came. One exception: a streamed
chat completion reports no usage unless the request asks for it. Then the proxy asks, and takes the
additional event out.

Each connection of the agent is one task:

1. A request is read completely, up to ``LARGEST_BODY``, and checked (``RequestCheck.check``).
2. ``read_request`` says what it is. Model calls and calls that cost nothing are passed on; anything
   else gets 403, in the vendor's format.
3. If the run waits for rate limits (``LimitWaits``), a model call is held while its credential is
   limited. If the response is a rate limit (429), it is not passed on: the request is sent again
   after the limit. If that takes longer than the agent waits for a response, the agent gets it.
4. For a model call the ``BudgetGate`` is asked, if there is one: it waits, lets the call pass or
   refuses it. It is asked again while the response comes, and may end it.
5. The response is passed on, and a ``CallMeter`` reads its usage.
6. ``on_call`` gets each model call, exactly once, also if the agent or the vendor closes its
   connection, or the proxy is closed. What was not reported then is marked as partial.

If the vendor cannot be reached or sends nothing, the agent gets 502 or 504; also if anything fails
in the proxy itself. If a response breaks in the middle, the agent's connection is closed. If the
agent closes its connection, the vendor's is closed too, so that no more tokens are spent. Nothing
is sent twice, except after a rate limit.

The event loop holds this object until ``close``; so ``on_call`` must not hold the agent's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from corral._metering.budget_gate import BudgetGate, BudgetTicket
from corral._metering.calls import (
    FreeRequest,
    MeteredCall,
    ModelRequest,
    UnknownRequest,
    read_request,
)
from corral._metering.proxy.client_requests import (
    AgentRequest,
    BadRequest,
    ReceivedRequest,
    RequestCheck,
    RequestReader,
)
from corral._metering.proxy.open_calls import (
    LIMITED,
    OpenModelCall,
    OpenRequest,
)
from corral._metering.proxy.upstream import ResponseFailed, Upstream, searched_keys
from corral._models.spec import Provider
from corral._system.clock import random_hex
from corral._system.http.request import parse_url
from corral.errors import CorralError
from corral.values import JsonObject

if TYPE_CHECKING:
    from corral._metering.rate_limits import CallWaits, LimitWaits

T = TypeVar("T")

_log = logging.getLogger("corral.models")
CLOSE_SECONDS = 5.0
"""Seconds in which connections must end once they are cancelled."""
_DROPPED = frozenset(
    (
        *(b"expect", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"x-http-method", b"x-http-method-override", b"x-method-override"),
        *(b"x-original-url", b"x-rewrite-url", b"content-encoding"),
    )
)
"""Headers that are not sent, besides those that start with ``proxy-``: those that concern one
connection, those that some servers read instead of the first line, and the compression, because
bodies are sent without."""


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the proxy needs to know."""

    upstream: str
    """The vendor's base URL."""
    providers: Callable[[], Sequence[Provider]]
    """Whose APIs the agent may use there. Called with the first connection."""
    keys: Mapping[str, str]
    """The real keys, by a name for each."""
    longest_hold: float = math.inf
    """Seconds that the agent waits for a response."""

    def __repr__(self) -> str:
        return f"ProxySettings({self.upstream!r})"


class ModelProxy:
    """Serves from ``open`` to ``close``."""

    def __init__(
        self,
        settings: ProxySettings,
        on_call: Callable[[MeteredCall], None],
        gate: BudgetGate | None = None,
        *,
        on_start: Callable[[Sequence[bytes]], object] = lambda _request: None,
        on_limit: Callable[[CorralError | None], None] = lambda _error: None,
        on_key: Callable[[object], None] = lambda _owner: None,
        waits: LimitWaits | None = None,
    ) -> None:
        """``on_start`` gets each request that is sent as a model call: its headers and its body.
        What it returns is the ``owner`` of the call. ``on_limit`` gets the rate limit that a model
        call met, or None if it met none. With ``waits``, a call waits for it to end. ``on_key`` is
        called when a response contained a real key, with the owner of its call."""
        self._on_start = on_start
        self._on_limit = on_limit
        self._on_key = on_key
        self._waits = waits
        self._settings = settings
        self._target = parse_url(settings.upstream)
        self._on_call = on_call
        self._gate = gate
        self._server: asyncio.Server | None = None
        self._connections: set[_AgentConnection] = set()
        self._providers: Sequence[Provider] | None = None
        self.port: int = 0
        self.dummy_keys: dict[str, str] = {
            name: f"corral-{random_hex(20)}" for name in settings.keys
        }
        """What the agent gets instead of the real keys, by the same names."""
        # The path of the base URL, as it is sent, without a slash at its end.
        target = self._target
        path = target.path.partition("?")[0]
        self._base = path.removeprefix(f"http://{target.origin.authority}").rstrip("/")
        given = [value.rpartition(" ")[2] for value in self._target.given.values()]
        self._searched = searched_keys([*settings.keys.values(), *given])
        self._check: RequestCheck | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _AgentConnection(self, loop), "127.0.0.1", 0
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Accept no more connections and end those that are open. May be called more than once."""
        if self._server is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._server.close()
        for connection in tuple(self._connections):
            connection.end()

    async def wait_closed(self) -> None:
        """Wait, after ``close``, until all calls have been reported."""
        tasks = [each.task for each in self._connections if each.task is not None]
        if tasks and not tasks[0].get_loop().is_closed():
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    def add(self, connection: _AgentConnection) -> None:
        self._connections.add(connection)

    def discard(self, connection: _AgentConnection) -> None:
        self._connections.discard(connection)

    async def serve(self, reader: asyncio.StreamReader, writer: AgentWriter) -> None:
        """One connection of the agent, to its end. Each request gets an answer, whatever fails."""
        requests, upstream = RequestReader(reader, writer), Upstream(self._target.origin)
        try:
            while (request := await requests.next()) is not None:
                writer.has_begun = False
                keeps_open = await self._handle(request, writer, upstream)
                if not (keeps_open and request.keeps_open):
                    break
        except BadRequest as bad:
            self._answer(writer, bad.status, bad.text, close=True)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # this connection is ended; otherwise it is what the request waited for
            if isinstance(error, ConnectionError) and writer.is_closing():
                return  # the agent closed its connection
            _log.exception("a request of the agent failed")
            if not writer.has_begun:
                text = f"the request failed: {type(error).__name__}: {error}"
                for key in self._settings.keys.values():
                    text = text.replace(key, "[REDACTED]")
                self._answer(writer, 502, text, close=True)
        finally:
            requests.close()
            upstream.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                writer.close()

    async def _handle(
        self, received: ReceivedRequest, writer: asyncio.StreamWriter, upstream: Upstream
    ) -> bool:
        """Whether the connection can be used again. Raises ``BadRequest``."""
        if self._check is None:
            keys = {self.dummy_keys[name]: real for name, real in self._settings.keys.items()}
            self._check = RequestCheck(keys, self._find_providers())
        request = self._check.check(received, self._base)
        path, body = request.target.path, request.body
        kind = read_request(self._find_providers(), request.method, path, body)
        if isinstance(kind, UnknownRequest):
            self._answer(writer, 403, kind.reason)
            return True
        if isinstance(kind, FreeRequest):
            return await self._pass_on(request, writer, upstream, OpenRequest())
        return await self._call_model(request, kind, writer, upstream)

    async def _call_model(
        self,
        request: AgentRequest,
        kind: ModelRequest,
        writer: asyncio.StreamWriter,
        upstream: Upstream,
    ) -> bool:
        """Whether the connection can be used again. A call that meets a rate limit is made again
        after the limit, if the run waits; the agent does not notice."""
        waits = self._waits_for(request, kind)

        async def send() -> OpenModelCall:
            call = OpenModelCall(kind, await self._admit(kind), holds_limits=waits is not None)
            call.owner = self._owner_of(request)
            call.keeps_open = await self._pass_on(request, writer, upstream, call)
            return call

        try:
            call = await self._send_within_limits(waits, send)
        except ResponseFailed as refused:
            self._answer(writer, refused.status, refused.text)
            return True
        if call.held:
            writer.write(call.held)
            await writer.drain()
        return call.keeps_open

    async def _send_within_limits(
        self, waits: CallWaits | None, send: Callable[[], Awaitable[OpenModelCall]]
    ) -> OpenModelCall:
        """Make a model call with ``send``, again after each rate limit that the run waits for.
        Returns the last call; if it met a limit that is not waited for, it has the response in
        ``held``. Raises ``ResponseFailed`` if the call is not made because of a limit."""
        while True:
            if waits is not None and (limit := await self._held(waits.before())) is not None:
                self._on_limit(limit.error())
                raise ResponseFailed(LIMITED, limit.message)
            call = await send()
            error = call.limit
            self._on_limit(error)
            if error is None or waits is None or not call.is_complete:
                return call
            if await self._held(waits.after(error)) is None:
                return call

    async def _held(self, wait: Awaitable[T]) -> T:
        """The same wait; it is cancelled if the agent closes its connection meanwhile. Otherwise
        its request would be sent after the limit, beside the one that it sends again."""
        task = asyncio.current_task()
        connection = next((line for line in self._connections if line.task is task), None)
        if connection is None:
            return await wait
        connection.set_held(is_held=True)
        try:
            return await wait
        finally:
            connection.set_held(is_held=False)

    def _waits_for(self, request: AgentRequest, kind: ModelRequest) -> CallWaits | None:
        """The waits of a model call, if the run waits for rate limits."""
        if self._waits is None:
            return None
        from corral._metering.rate_limits import credential_id

        credential = credential_id(self._target.origin.authority, request.key, kind.model)
        return self._waits.call(credential, self._settings.longest_hold)

    async def _admit(self, request: ModelRequest) -> BudgetTicket | None:
        """Wait until the call may be made. Raises ``ResponseFailed`` if it is refused."""
        if self._gate is None:
            return None
        admitted = await self._gate.admit(request)
        if isinstance(admitted, str):
            raise ResponseFailed(402, admitted)
        return admitted

    def _owner_of(self, request: AgentRequest) -> object:
        """What a model call belongs to, which begins now."""
        values = (value for _, value in request.headers)
        target = request.target.encode().encode()
        return self._on_start((b"\n".join([target, *values]), request.body))

    async def _pass_on(
        self,
        request: AgentRequest,
        writer: asyncio.StreamWriter,
        upstream: Upstream,
        call: OpenRequest,
    ) -> bool:
        """Send the request to the vendor and the response to the agent. Returns whether the
        connection can be used again."""
        response = call.response
        try:
            await self._send(request, call, upstream)
            while not response.is_complete:
                data = await upstream.read()
                body = response.receive(data) if data else response.end()
                writer.write(call.encode(response, body))
                await writer.drain()
                if not response.is_complete and not call.may_continue():
                    raise ResponseFailed(402, "the budget is spent")
            call.is_complete = True
        except ResponseFailed as failed:
            call.error = failed.text
            upstream.close()
            if not call.has_begun:
                self._answer(writer, failed.status, failed.text)
            return not call.has_begun
        finally:
            response.close()
            self._report(call)
        if not response.keeps_open:
            upstream.close()
        return response.has_length

    async def _send(self, request: AgentRequest, call: OpenRequest, upstream: Upstream) -> None:
        """Send the request to the vendor. Raises ``ResponseFailed`` if it cannot be reached."""
        if call.added_usage is not None:
            request = request.with_body(call.added_usage)
        call.response.refuse_keys(self._searched)
        await upstream.send(self._head(request), request.body)
        call.is_sent = True

    def _report(self, call: OpenRequest) -> None:
        """The call has ended."""
        if call.response.has_key:
            _log.error("a response of %s contained the key", self._target.origin.authority)
            self._on_key(call.owner)
        done = call.finish()
        if done is not None:
            self._on_call(done)

    def _head(self, request: AgentRequest) -> bytes:
        """The request as it is sent to the vendor, up to its body."""
        origin, size = self._target.origin, len(request.body)
        ours = {
            b"host": origin.authority.encode("latin-1"),
            b"accept-encoding": b"identity",
            b"content-length": b"%d" % size,
        }
        # A proxy of the user for plain HTTP gets the complete URL.
        prefix = f"http://{origin.authority}" if origin.proxy and not origin.secure else ""
        path = f"{prefix}{self._base}{request.target.encode()}"
        lines = [f"{request.method} {path} HTTP/1.1".encode("latin-1")]
        given = {name.encode(): v.encode("latin-1") for name, v in self._target.given.items()}
        missing = given | ours
        for name, value in request.headers:
            lower = name.lower()
            if not _is_dropped(lower, value) and (lower not in ours or lower in missing):
                missing.pop(lower, None)
                lines.append(name + b": " + ours.get(lower, value))
        if not size:
            missing.pop(b"content-length", None)
        lines += [name + b": " + value for name, value in missing.items()]
        return b"\r\n".join([*lines, b"", b""])

    def _find_providers(self) -> Sequence[Provider]:
        if self._providers is None:
            self._providers = self._settings.providers()
        return self._providers

    def _answer(
        self, writer: asyncio.StreamWriter, status: int, text: str, *, close: bool = False
    ) -> None:
        """Answer a request of the agent with an error, in the vendor's format."""
        from http import HTTPStatus

        error: JsonObject = {"error": {"message": f"corral: {text}"}}
        with contextlib.suppress(Exception):  # the vendor's format: it may be what has failed
            error = self._find_providers()[0].wire.error_body(status, f"corral: {text}")
        body = msgspec.json.encode(error)
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *(["Connection: close"] if close else []),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


class AgentWriter(asyncio.StreamWriter):
    """Sends to the agent."""

    has_begun: bool = False
    """Whether something was sent in answer to the last request."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.has_begun = self.has_begun or bool(data)
        super().write(data)


class _AgentConnection(asyncio.StreamReaderProtocol):
    """A connection of the agent. Its task is cancelled when the connection is lost. An agent that
    only closed its side for writing still gets the response."""

    def __init__(self, proxy: ModelProxy, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = asyncio.StreamReader(loop=loop)
        super().__init__(self._reader, loop=loop)
        self._proxy = proxy
        self._event_loop = loop
        self._transport_open: asyncio.BaseTransport | None = None
        self.task: asyncio.Task[None] | None = None
        self._is_held = False
        self._is_half_closed = False

    def set_held(self, *, is_held: bool) -> None:
        """Its request waits for a rate limit."""
        self._is_held = is_held
        if is_held and self._is_half_closed:
            self.end()

    def eof_received(self) -> bool | None:
        self._is_half_closed = True
        if self._is_held:
            self.end()
        return super().eof_received()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport_open = transport
        # Not isinstance: the transports of uvloop have no base class.
        sending = cast("asyncio.WriteTransport", transport)
        writer = AgentWriter(sending, self, self._reader, self._event_loop)
        self._proxy.add(self)
        self.task = self._event_loop.create_task(self._proxy.serve(self._reader, writer))
        self.task.add_done_callback(self._on_done)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.end()

    def end(self) -> None:
        if self.task is not None and not self.task.done() and not self._event_loop.is_closed():
            self.task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._proxy.discard(self)
        if not task.cancelled() and task.exception() is not None and self._transport_open:
            self._transport_open.close()


def _is_dropped(name: bytes, value: bytes) -> bool:
    if name == b"connection":
        return value.lower() != b"keep-alive"
    return name in _DROPPED or name.startswith(b"proxy-")
