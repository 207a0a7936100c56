"""Lets the model calls of a run pass while they fit into its budget.

Before a call, an upper estimate of its use is reserved: its input by the size of the request, and a
part of its output. While the response comes, more is reserved for the output; if that does not fit,
the response is ended. So the limit of a request on its output may be large without being reserved,
and calls that run at the same time do not exceed the budget together. The estimate of the input is
corrected by what the vendor reported for earlier calls of the same model.

What a model uses without sending it, such as hidden reasoning, is known only at the end of a call:
by that much a budget can be exceeded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from corral._core.spending import Spent, dollars
from corral._metering.budget import HINT, Budget, Reservation, Shortage
from corral._metering.calls import (
    BYTES_PER_TOKEN,
    OUTPUT_BYTES_PER_TOKEN,
    CallMeter,
    MeteredCall,
    ModelRequest,
)
from corral._metering.prices import find_prices
from corral._models.catalogue import Prices
from corral._models.registry import split_model
from corral.errors import BudgetExceeded, CorralError, PriceUnknown
from corral.events import Error
from corral.model_types import Request, Response

OUTPUT_STEP = 1024
"""Tokens of output that are reserved at a time."""
UNSTREAMED_OUTPUT = 8192
"""Tokens of output that are reserved for a response that comes at once, without a smaller limit."""
MARGIN = 1.25
"""How much larger the next input may be, compared with its size, than those before."""
MOST = 4.0
"""The estimate of an input, at most, as a multiple of its bound."""
LOOK_AGAIN = 0.2
"""Seconds until a call that waits for other processes tries again."""
_MILLION = 1_000_000


class BudgetGate:
    """The gate of one run. ``on_wait`` is called with a text when a call has to wait."""

    def __init__(self, budget: Budget, on_wait: Callable[[str], None]) -> None:
        self._budget = budget
        self._on_wait = on_wait
        self._factors: dict[str, float] = {}
        """Model → input tokens of its calls so far, compared with their bound, at most."""
        self.refusal: CorralError | None = None
        """Why a call was refused."""

    async def admit(self, request: ModelRequest) -> BudgetTicket | str:
        known = self._factors.get(request.model)
        factor = 1.0 if known is None else min(MOST, known * MARGIN)
        tokens = round(request.input_bound * factor)
        prices = find_prices(request.model_id, max(tokens, request.input_bound))
        if prices is None and self._budget.limits_cost:
            return self._refuse(price_unknown(request.model_id))
        step = OUTPUT_STEP if request.is_streamed else UNSTREAMED_OUTPUT
        output = min(step, request.output_limit or step)
        estimate = spent_for(tokens, output, prices)
        reserved = await self._reserve(estimate)
        if isinstance(reserved, Shortage):
            return self._refuse(BudgetExceeded(_describe(reserved, estimate), hint=HINT))
        return BudgetTicket(reserved, request, output, prices, self._learn)

    async def reserve(self, request: Request) -> BudgetTicket:
        """For a call that corral makes itself. Raises ``BudgetExceeded`` and ``PriceUnknown``."""
        provider, name = split_model(request.model)
        size = len(msgspec.json.encode((request.messages, request.tools)))
        made = ModelRequest(
            provider=provider,
            model=name,
            is_streamed=True,
            input_bound=size // BYTES_PER_TOKEN,
            output_limit=request.max_tokens,
        )
        ticket = await self.admit(made)
        if isinstance(ticket, str):
            raise self.refusal or BudgetExceeded(ticket)
        return ticket

    async def _reserve(self, amount: Spent) -> Reservation | Shortage:
        """Waits while the call might still fit."""
        found = self._budget.reserve(amount)
        if isinstance(found, Reservation) or not found.must_wait:
            return found
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        *_, outermost = self._budget.chain()
        remove = outermost.on_change(wake)
        is_reported = False
        try:
            while True:
                found = self._budget.reserve(amount)
                if isinstance(found, Reservation) or not found.must_wait:
                    return found
                if found.budget.is_paused and not is_reported:
                    is_reported = True
                    text, owner = _describe(found, amount), self._budget.owner
                    if owner:
                        text += f"; to raise it: corral runs budget {owner} +1.00"
                    self._on_wait(text)
                # Other processes do not say that something has changed.
                is_shared = any(each.is_shared for each in self._budget.chain())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), LOOK_AGAIN if is_shared else None)
                changed.clear()
        except BaseException:  # the agent has ended, or was cancelled
            self._budget.stop_waiting()
            raise
        finally:
            remove()

    def _learn(self, request: ModelRequest, tokens: int) -> None:
        factor = tokens / max(1, request.input_bound)
        self._factors[request.model] = max(factor, self._factors.get(request.model, 0.0))

    def _refuse(self, error: CorralError) -> str:
        self.refusal = error
        return error.message


class BudgetTicket:
    """The reservation of one call."""

    def __init__(
        self,
        reservation: Reservation,
        request: ModelRequest,
        output: int,
        prices: Prices | None,
        learn: Callable[[ModelRequest, int], None],
    ) -> None:
        self.reservation: Reservation = reservation
        self._request = request
        self._prices = prices
        self._learn = learn
        self._output = output
        """Tokens of output for which there is a reservation."""

    def may_continue(self, meter: CallMeter) -> bool:
        while meter.output > self._output:
            more = spent_for(0, OUTPUT_STEP, self._prices)
            if not self.reservation.extend(Spent(more.cost, more.tokens)):
                return False
            self._output += OUTPUT_STEP
        return True

    def settle(self, call: MeteredCall) -> None:
        usage = call.usage
        if usage.input and usage.coverage != "estimated":
            self._learn(self._request, usage.input)
        cost, tokens = call.cost.usd or 0.0, usage.total or 0
        if call.is_partial:
            output = max(call.output, usage.output or 0)
            estimate = spent_for(usage.input or self._request.input_bound, output, self._prices)
            cost, tokens = max(cost, estimate.cost), max(tokens, estimate.tokens)
        elif call.cost.usd is None:
            cost = spent_for(usage.input or 0, usage.output or 0, self._prices).cost
        self.reservation.settle(Spent(cost, tokens, 1))

    def settle_response(
        self, response: Response | None, *, was_billed: bool, streamed: int = 0
    ) -> None:
        """A call that corral made itself has ended, with a response or without. ``streamed``: bytes
        of output that came before."""
        call = MeteredCall(request=self._request, model=self._request.model, is_partial=was_billed)
        output = streamed // OUTPUT_BYTES_PER_TOKEN
        if response is not None:
            is_partial = response.usage.coverage != "complete"
            call = replace(call, usage=response.usage, cost=response.cost, is_partial=is_partial)
            output = len(msgspec.json.encode(response.message)) // OUTPUT_BYTES_PER_TOKEN
        elif was_billed:  # what is not known counts as it was reserved
            output = max(output, self._output)
        self.settle(replace(call, output=output))


def spent_for(input_tokens: int, output_tokens: int, prices: Prices | None) -> Spent:
    """What a call costs at most, as its input may be written to a cache."""
    cost = 0.0
    if prices is not None:
        dearest = max(prices.input, prices.cache_write or 0.0)
        cost = (input_tokens * dearest + output_tokens * prices.output) / _MILLION
    return Spent(cost, input_tokens + output_tokens, 1)


def price_unknown(model: str) -> PriceUnknown:
    return PriceUnknown(
        f"max_cost: the price of {model} is not known",
        hint="Add its price to models.toml, or limit the tokens with max_total_tokens.",
    )


def _describe(shortage: Shortage, estimate: Spent) -> str:
    needs = f"{estimate.tokens:,} tokens"
    if estimate.cost:
        needs += f" ({dollars(estimate.cost)})"
    text = f"the next model call does not fit into the budget: {shortage.text}"
    return f"{text}, and it may need {needs}"


def paused_event(text: str) -> Error:
    """A model call waits until the budget is raised; ``text`` says why."""
    message = f"paused until the budget is raised: {text}"
    return Error("budget_paused", message, recoverable=True, level="warning", phase="budget")
