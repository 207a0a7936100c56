"""The budget of a run in this process, and the model calls that nodes make without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.core.spending import BudgetLimits
from corral.errors import CorralError, TimedOut
from corral.inference.middleware import Complete, Middleware, Streamed
from corral.metering.budget import Budget
from corral.metering.budget_gate import BudgetGate, paused_event
from corral.model_types import Finish, Request, Response, StreamEvent
from corral.options import OnBudget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from corral.pipelines.execution.handlers import NodeContext


def memory_budget(limits: BudgetLimits, parent: Budget | None) -> Budget | None:
    """The budget of a run in memory; ``parent`` is that of the run around it."""
    if not limits.exist:
        return parent
    at_limit: OnBudget = "pause" if limits.pauses else "stop"
    return Budget(**limits.as_dict(), on_budget=at_limit, parent=parent)


class CountedCalls(Middleware):
    """Makes model calls only while they fit into the budget of the node."""

    def __init__(self, work: NodeContext, budget: Budget) -> None:
        self._gate = BudgetGate(budget, lambda text: work.emit(paused_event(text)))

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
            reserved.settle(response, was_billed=was_billed)

    async def stream(self, request: Request, call: Streamed) -> AsyncIterator[StreamEvent]:
        reserved = await self._gate.reserve(request)
        response: Response | None = None
        has_started = False
        try:
            async for event in call(request):
                has_started = True
                if isinstance(event, Finish):
                    response = event.response
                yield event
        finally:
            reserved.settle(response, was_billed=has_started)
