"""A request while it is made: the bytes for the agent, and what is counted of a model call."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from corral._metering import prices
from corral._metering.budget_gate import BudgetTicket
from corral._metering.calls import (
    CallMeter,
    MeteredCall,
    ModelRequest,
    UsageEventFilter,
    estimated_usage,
)
from corral._metering.proxy.upstream import VendorResponse
from corral._models.spec import EVENT_STREAM, FailedResponse
from corral._system import clock
from corral.errors import CorralError
from corral.values import Cost, Usage

ABANDONED = "the agent closed the connection"
LIMITED = 429
"""The status of a rate limit."""
LARGEST_LIMIT_BODY = 64 * 1024
"""Bytes of the body of a rate limit that are read."""


class OpenRequest:
    """One request while it is made. The agent gets the bytes of the response unchanged."""

    added_usage: bytes | None = None
    """The body to send, instead of the agent's own."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.is_complete = False
        self.has_begun: bool = False
        """Whether the agent got a part of the response."""
        self.keeps_open = True
        """Whether the agent's connection can be used again after the call."""
        self.is_sent = False
        """Whether the request was sent to the vendor."""
        self.owner: object = None
        """What it belongs to."""
        self.response: VendorResponse = VendorResponse(self)

    def on_head(self, response: VendorResponse) -> None:
        pass

    def on_body(self, data: bytes) -> None:
        pass

    def may_continue(self) -> bool:
        return True

    def encode(self, response: VendorResponse, body: bytes) -> bytes:
        """The bytes for the agent. ``body`` is a part of the body as it came."""
        if self.has_begun:
            return body
        self.has_begun = bool(response.head)
        return response.head + body

    def finish(self) -> MeteredCall | None:
        return None


class OpenModelCall(OpenRequest):
    """A model call. If the agent did not ask for the usage that ``added_usage`` asks for, the
    events with it are taken out of the response, and the rest is sent in chunks."""

    def __init__(
        self, request: ModelRequest, ticket: BudgetTicket | None, *, holds_limits: bool = False
    ) -> None:
        """With ``holds_limits``, a response that is a rate limit is kept in ``held`` instead of
        passed on."""
        super().__init__()
        self._holds_limits = holds_limits
        self._limit_body: bytearray | None = None
        self._limit_headers: dict[str, str] = {}
        self.held: bytes = b""
        self.added_usage: bytes | None = request.added_usage
        self._request = request
        self._ticket = ticket
        self._meter = CallMeter(request)
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._first_byte: float | None = None
        self._status: int | None = None
        self._filter: UsageEventFilter | None = None
        self._passed: list[bytes] = []
        self._uncounted: list[bytes] = []
        """Parts of the body that the meter has not read: the agent gets them first."""

    def on_head(self, response: VendorResponse) -> None:
        self._first_byte = self._clock() - self._started
        self._status = response.status
        self._meter.start(response.status, response.media_type)
        if response.status == LIMITED:
            self._limit_body = bytearray()
            fields = response.fields.items()
            self._limit_headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in fields}
        is_stream = response.status == 200 and response.media_type == EVENT_STREAM
        is_plain = b"content-encoding" not in response.fields
        if self.added_usage is not None and is_stream and is_plain:
            self._filter = UsageEventFilter(self._request.provider)

    def on_body(self, data: bytes) -> None:
        if self._limit_body is not None and len(self._limit_body) < LARGEST_LIMIT_BODY:
            self._limit_body += data
        self._uncounted.append(data)
        if self._filter is not None:
            self._passed.append(self._filter.receive(data))

    def _count(self) -> None:
        for data in self._uncounted:
            self._meter.receive(data)
        self._uncounted.clear()

    def may_continue(self) -> bool:
        self._count()
        return self._ticket is None or self._ticket.may_continue(self._meter)

    @property
    def limit(self) -> CorralError | None:
        """The rate limit that the response is."""
        if self._limit_body is None:
            return None
        request = self._request
        return request.provider.wire.failure(
            FailedResponse(
                provider=request.provider,
                model=request.model,
                status=LIMITED,
                body=bytes(self._limit_body),
                headers=self._limit_headers,
                now=clock.now(),
            )
        )

    def encode(self, response: VendorResponse, body: bytes) -> bytes:
        if self._holds_limits and self._limit_body is not None:
            self.held += (response.head if not self.held else b"") + body
            return b""
        if self._filter is None:
            return super().encode(response, body)
        out = b"" if self.has_begun else chunked_head(response.head)
        self.has_begun = True
        if response.is_complete:
            self._passed.append(self._filter.take_rest())
        data = b"".join(self._passed)
        self._passed.clear()
        if data:
            out += b"%x\r\n%b\r\n" % (len(data), data)
        return out + b"0\r\n\r\n" if response.is_complete else out

    def finish(self) -> MeteredCall:
        meter, request = self._meter, self._request
        self._count()
        meter.end(complete=self.is_complete)
        if self.error is None and not self.is_complete:
            self.error: str | None = ABANDONED
        # The vendor bills a request that it got, also if no one waits for the response.
        is_partial = meter.is_partial or (self.is_sent and self._status is None)
        usage = meter.usage
        if is_partial and usage.input is None:
            usage = estimated_usage(request, usage, meter.output)
        done = MeteredCall(
            request=request,
            model=meter.model,
            usage=usage,
            cost=cost_of(request, meter.model, usage),
            status=self._status,
            is_partial=is_partial,
            output=meter.output,
            first_byte=self._first_byte,
            duration=self._clock() - self._started,
            error=self.error,
            owner=self.owner,
        )
        if self._ticket is not None:
            self._ticket.settle(done)
        return done


def cost_of(request: ModelRequest, model: str, usage: Usage) -> Cost:
    """The cost of a call by the catalogue. Of a call that was cut, what was reported is counted."""
    if usage == Usage():
        return Cost()
    known = replace(usage, input=usage.input or 0, output=usage.output or 0, coverage="complete")
    cost = prices.catalogue().cost(request.model_id, known, model)
    is_estimate = usage.coverage == "estimated" and cost.usd is not None
    return replace(cost, source="estimated") if is_estimate else cost


def chunked_head(head: bytes, *dropped: bytes) -> bytes:
    """The head of a response whose body is sent in chunks, without the headers that begin with one
    of ``dropped``."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    framing = (b"content-length:", b"transfer-encoding:", *dropped)
    kept = [line for line in lines if not line.lower().startswith(framing)]
    return b"\r\n".join([*kept, b"transfer-encoding: chunked", b"", b""])
