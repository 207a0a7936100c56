"""A model call whose tool calls are judged before the agent sees them.

Theory of operation
-------------------
``ToolGate`` (``corral._models.tool_gate``) reads the response: text is passed on to the agent, tool
calls are held. At the end of the response a ``ToolJudge`` decides about its calls, which may take
as long as a person needs. Meanwhile the agent gets an empty line now and then, which means nothing
in a stream of events or before a JSON text: so its connection does not time out. If the agent has
closed its side, it gets them at once and often: if it is gone, the system answers the first with a
reset, the next one fails, and the decision is cancelled.

If all calls are allowed, the agent gets what was held. If one is refused, the proxy
sends the next request itself: the same conversation with the calls and their refusals. The agent
gets the response to that as the continuation of the one before. Each such request is a model call
of its own: it is admitted, reported, and made again after a rate limit like those of the agent.
After ``MOST_REFUSALS`` in a row the response ends with a text that says so.

The agent does not know of a refused call, so its next request does not contain it.

Nothing of the vendor's bytes is copied. The head of a response is made again from its status and
its headers, without those about framing and encoding; the body is sent in chunks of this proxy. So
the agent cannot see another end of a response, another media type or another response than was
read here. A redirect is not passed on: the agent would follow it, around the proxy. Of errors the
agent gets the body as it is: no agent looks for calls in it.

What is not understood exactly (``Unjudgeable``) is not passed on, and the run ends. What is only
cut or cannot be continued is not passed on either, and the connection is closed; the agent may try
again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from corral._metering.calls import ModelRequest
from corral._metering.proxy.client_requests import AgentRequest
from corral._metering.proxy.open_calls import LIMITED, OpenModelCall, OpenRequest, Ticket, ToolJudge
from corral._metering.proxy.upstream import ResponseFailed, Upstream, VendorResponse
from corral._models.tool_gate import Incomplete, ToolGate, Unjudgeable, WireCall, call_format
from corral.values import as_object, decode_or_none

if TYPE_CHECKING:
    from corral._metering.rate_limits import CallWaits

AnyCall = TypeVar("AnyCall", bound=OpenModelCall)
MOST_REFUSALS = 3
"""Refusals in a row, until the response is ended."""
KEEP_ALIVE_SECONDS = 10.0
"""Seconds after which the agent gets an empty line while a decision is awaited."""
CLOSED_SECONDS = 0.5
"""The same after the agent has closed its side of the connection."""
CANCEL_SECONDS = 5.0
"""Seconds that a decision gets to end once it is cancelled."""
ENDED = "corral: the response ends here, because the policy refused {count} tool calls in a row: "
UNSAFE = "corral: a tool call was refused, and the run ends: "
_OWN_HEADERS = frozenset(
    (
        b"alt-svc",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"keep-alive",
        b"location",
        b"refresh",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers that describe the connection to the vendor or its bytes, or lead elsewhere."""
_HEADER_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]+/[a-z0-9.+-]+")
_NOT_JUDGED = "the tool calls of a response cannot be judged: {reason}"
LAST_CHUNK = b"0\r\n\r\n"
_HEADER_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


class JudgedCall(OpenModelCall):
    """Collects the body for the gate, decoded. An error is encoded again for the agent."""

    held: bytes

    def __init__(self, request: ModelRequest, ticket: Ticket | None, *, holds_limits: bool) -> None:
        super().__init__(request, ticket, holds_limits=holds_limits)
        self._pieces: list[bytes] = []
        self._is_encoded = False
        """Whether the head of an error was made."""

    def on_head(self, response: VendorResponse) -> None:
        super().on_head(response)
        self._filter = None  # the gate leaves the usage out

    def on_body(self, data: bytes) -> None:
        super().on_body(data)
        self._pieces.append(data)

    def take(self) -> bytes:
        pieces, self._pieces = b"".join(self._pieces), []
        return pieces

    def encode(self, response: VendorResponse, body: bytes) -> bytes:
        """A part of an error. ``body``, as it came, is not used."""
        if not response.head:
            return b""
        data = chunk(self.take())
        if not self._is_encoded:
            self._is_encoded = True
            data = response_head(response, response.media_type) + data
        if response.is_complete:
            data += LAST_CHUNK
        if self._holds_limits and response.status == LIMITED:
            self.held += data
            return b""
        self.has_begun = True
        return data


class CallMaker(Protocol):
    """What an exchange needs of the proxy (``ModelProxy``), which makes its model calls."""

    def read_call(self, request: AgentRequest) -> ModelRequest | None: ...
    def owner_of(self, request: AgentRequest) -> object: ...
    def waits_for(self, request: AgentRequest, kind: ModelRequest) -> CallWaits | None: ...
    async def admit(self, request: ModelRequest) -> Ticket | None: ...
    async def send_within_limits(
        self, waits: CallWaits | None, send: Callable[[], Awaitable[AnyCall]]
    ) -> AnyCall: ...
    async def send(self, request: AgentRequest, call: OpenRequest, upstream: Upstream) -> None: ...
    def report(self, call: OpenRequest) -> None: ...
    def answer(
        self, writer: asyncio.StreamWriter, status: int, text: str, *, close: bool = False
    ) -> None: ...
    def agent_side_closed(self) -> asyncio.Event: ...


class JudgedExchange:
    """One request of the agent, with all the model calls that it leads to."""

    def __init__(
        self,
        proxy: CallMaker,
        judge: ToolJudge,
        writer: asyncio.StreamWriter,
        upstream: Upstream,
    ) -> None:
        self._proxy = proxy
        self._judge = judge
        self._writer = writer
        self._upstream = upstream
        self._has_begun = False
        """Whether the agent got a part of a response."""
        self._media_type = ""

    async def run(self, request: AgentRequest, kind: ModelRequest) -> bool:
        """Whether the agent's connection can be used again."""
        wire = kind.provider.wire
        reader = call_format(wire)
        if reader is None:
            self._proxy.answer(self._writer, 403, f"tool calls of {wire.name} cannot be judged")
            return True
        gate = ToolGate(reader, as_object(decode_or_none(request.body)), wire)
        refusal = self._judge.refuse_tools(gate.provider_tools)
        if refusal is not None:
            self._proxy.answer(self._writer, 403, refusal)
            return True
        try:
            return await self._until_decided(request, kind, gate)
        except Incomplete as cut:
            return self._break(ResponseFailed(502, _NOT_JUDGED.format(reason=cut)))
        except Unjudgeable as unreadable:
            self._judge.fail_unreadable(str(unreadable))
            return self._break(ResponseFailed(502, _NOT_JUDGED.format(reason=unreadable)))
        except ResponseFailed as failed:
            return self._break(failed)

    def _break(self, failed: ResponseFailed) -> bool:
        """The response is not passed on, or not to its end. Whether the agent's connection can be
        used again."""
        self._upstream.close()
        if not self._has_begun:
            self._proxy.answer(self._writer, failed.status, failed.text)
        return not self._has_begun

    async def _until_decided(
        self, request: AgentRequest, kind: ModelRequest, gate: ToolGate
    ) -> bool:
        refusals = 0
        waits = self._proxy.waits_for(request, kind)
        while True:
            send = partial(self._exchange, request, kind, gate, holds_limits=waits is not None)
            call = await self._proxy.send_within_limits(waits, send)
            response = call.response
            if call.held:
                self._check_not_begun(response)
                self._writer.write(call.held)
                await self._writer.drain()
            if not _is_success(response):
                return True
            results = await self._decide(gate.end(), response)
            if results is None:
                return await self._finish(response, gate.release())
            refusals += 1
            if refusals == MOST_REFUSALS:
                text = ENDED.format(count=refusals) + "\n".join(dict.fromkeys(results))
                return await self._finish(response, gate.close(text))
            body = gate.refuse(results)
            if body is None:
                self._judge.fail(results[0])
                return await self._finish(response, gate.close(UNSAFE + results[0]))
            request = request.with_body(body)
            kind = self._proxy.read_call(request) or kind

    async def _exchange(
        self, request: AgentRequest, kind: ModelRequest, gate: ToolGate, *, holds_limits: bool
    ) -> JudgedCall:
        """Send the request and read the response to its end. The agent gets what need not be
        judged, or the complete response if it is an error; with ``holds_limits``, a rate limit is
        kept in the call. Raises ``ResponseFailed`` and ``Unjudgeable``."""
        call = JudgedCall(kind, await self._proxy.admit(kind), holds_limits=holds_limits)
        call.owner = self._proxy.owner_of(request)
        response = call.response
        try:
            await self._proxy.send(request, call, self._upstream)
            is_started = False
            while not response.is_complete:
                data = await self._upstream.read()
                raw = response.receive(data) if data else response.end()
                if response.head and not is_started:
                    is_started = True
                    if _is_success(response):
                        gate.start(response.media_type, drops_usage=call.added_usage is not None)
                        self._media_type = gate.media_type
                    elif not 400 <= response.status < 600:
                        # Also 204, whose body a client would take for the next response.
                        raise ResponseFailed(502, f"the vendor answered with {response.status}")
                self._pass_on(call, gate, raw)
                await self._writer.drain()
                if not response.is_complete and not call.may_continue():
                    raise ResponseFailed(402, "the budget is spent")
            call.is_complete = True
        except (ResponseFailed, Unjudgeable) as failed:
            call.error = str(failed)
            raise
        finally:
            response.close()
            self._proxy.report(call)
        if not response.keeps_open:
            self._upstream.close()
        return call

    def _pass_on(self, call: JudgedCall, gate: ToolGate, raw: bytes) -> None:
        response = call.response
        if not _is_success(response):
            was_begun, data = call.has_begun, call.encode(response, raw)
            if call.has_begun and not was_begun:
                self._check_not_begun(response)
            self._writer.write(data)
            return
        if response.is_unreadable:
            raise Unjudgeable("its compression is not supported")
        data = gate.receive(call.take())
        if data:
            self._write(response, data)

    def _check_not_begun(self, response: VendorResponse) -> None:
        """Raises ``ResponseFailed`` if the agent got a part of an earlier response."""
        if self._has_begun:
            raise ResponseFailed(502, f"the vendor answered a refusal with {response.status}")
        self._has_begun = True

    async def _decide(
        self, calls: Sequence[WireCall], response: VendorResponse
    ) -> list[str] | None:
        if not calls:
            return None
        decision = asyncio.ensure_future(self._judge.decide(calls))
        closed = asyncio.ensure_future(self._proxy.agent_side_closed().wait())
        try:
            # The agent gets an empty line from time to time, so that it does not give up.
            while True:
                if closed.done():
                    await asyncio.wait([decision], timeout=CLOSED_SECONDS)
                else:
                    first = asyncio.FIRST_COMPLETED
                    waited_for: list[asyncio.Future[Any]] = [decision, closed]
                    await asyncio.wait(waited_for, timeout=KEEP_ALIVE_SECONDS, return_when=first)
                if decision.done():
                    break
                self._write(response, b"\n")
                await self._writer.drain()
        finally:
            closed.cancel()
            if not decision.done():
                decision.cancel()
                await asyncio.wait([decision], timeout=CANCEL_SECONDS)
        return decision.result()

    def _write(self, response: VendorResponse, data: bytes) -> None:
        """Send a chunk, after the head of the response if that was not sent."""
        head = b"" if self._has_begun else response_head(response, self._media_type)
        self._has_begun = True
        self._writer.write(head + chunk(data))

    async def _finish(self, response: VendorResponse, data: bytes) -> bool:
        self._write(response, data)
        self._writer.write(LAST_CHUNK)
        await self._writer.drain()
        return True


def chunk(data: bytes) -> bytes:
    """A part of a body; nothing for no data, which would mean the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def response_head(response: VendorResponse, media_type: str) -> bytes:
    """The head of a response for the agent, whose body is sent in chunks."""
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {response.status} {phrase}".encode()]
    for name, value in response.fields.items():
        is_plain = _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)
        if is_plain and name not in _OWN_HEADERS and not name.startswith(b"proxy-"):
            lines.append(name + b": " + value)
    if _MEDIA_TYPE.fullmatch(media_type):
        lines.append(b"content-type: " + media_type.encode())
    return b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", b""])


def _is_success(response: VendorResponse) -> bool:
    return response.status == HTTPStatus.OK
