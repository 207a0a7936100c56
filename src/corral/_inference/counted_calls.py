"""Model calls of corral's own that a budget limits."""

from __future__ import annotations

from collections.abc import AsyncIterator

from corral._inference.client import Complete, Middleware, Streamed
from corral._metering.budget_gate import BudgetGate
from corral.errors import CorralError, TimedOut
from corral.model_types import (
    Finish,
    Request,
    Response,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)


class CountedCalls(Middleware):
    """Makes model calls only while they fit into the budget of the gate."""

    def __init__(self, gate: BudgetGate) -> None:
        self._gate = gate

    async def complete(self, request: Request, call: Complete) -> Response:
        reserved = await self._gate.reserve(request)
        response: Response | None = None
        was_billed = True
        try:
            response = await call(request)
            return response
        except CorralError as error:
            was_billed = isinstance(error, TimedOut)
            raise
        finally:
            reserved.settle_response(response, was_billed=was_billed)

    async def stream(self, request: Request, call: Streamed) -> AsyncIterator[StreamEvent]:
        reserved = await self._gate.reserve(request)
        response: Response | None = None
        has_started, streamed = False, 0
        try:
            async for event in call(request):
                has_started = True
                if isinstance(event, Finish):
                    response = event.response
                elif isinstance(event, TextDelta | ThinkingDelta):
                    streamed += len(event.text)
                elif isinstance(event, ToolCallDelta):
                    streamed += len(event.arguments)
                yield event
        finally:
            reserved.settle_response(response, was_billed=has_started, streamed=streamed)
