"""Budgets: reservations of calls that run at the same time, limits within limits, raising one."""

from __future__ import annotations

import asyncio

import pytest
from support.model_calls import FORMATS

from corral import Budget, errors
from corral._core.spending import Raise, Spent
from corral._metering.budget import Reservation, Shortage
from corral._metering.budget_gate import BudgetGate, BudgetTicket
from corral._metering.calls import CallMeter, MeteredCall, ModelRequest, read_request
from corral._models.registry import find_provider
from corral.values import Cost, Usage


def reserve(budget: Budget, amount: Spent) -> Reservation:
    found = budget.reserve(amount)
    assert isinstance(found, Reservation), found
    return found


def shortage(budget: Budget, amount: Spent) -> Shortage:
    found = budget.reserve(amount)
    assert isinstance(found, Shortage), found
    return found


def test_reservations_count_until_they_are_settled() -> None:
    budget = Budget(max_total_tokens=100)
    first = reserve(budget, Spent(tokens=80, calls=1))
    assert shortage(budget, Spent(tokens=30, calls=1)).must_wait
    first.settle(Spent(tokens=20, calls=1))
    first.settle(Spent(tokens=20, calls=1))
    assert budget.spent == Spent(tokens=20, calls=1)
    second = reserve(budget, Spent(tokens=80, calls=1))
    second.settle(Spent(tokens=80, calls=1))
    refused = shortage(budget, Spent(tokens=1, calls=1))
    assert not refused.must_wait
    assert refused.text == "100 of max_total_tokens=100 spent"
    with pytest.raises(errors.BudgetExceeded, match="100 of max_total_tokens=100 spent"):
        budget.check()


def test_a_part_of_a_budget_is_limited_by_its_parent() -> None:
    shared = Budget(max_cost=1.0)
    part, other = (
        Budget(max_calls=2, parent=shared),
        Budget(max_cost=5.0, parent=shared),
    )
    reserve(part, Spent(0.6, 10, 1)).settle(Spent(0.6, 10, 1))
    assert "max_cost=1" in shortage(other, Spent(0.6, 10, 1)).text
    reserve(part, Spent(0.1, 10, 1)).settle(Spent(0.1, 10, 1))
    assert "max_calls=2" in shortage(part, Spent(0.1, 10, 1)).text
    assert shared.spent.calls == 2
    assert other.limits_cost
    assert Budget(max_calls=1, parent=shared).limits_cost
    assert not Budget(max_calls=1).limits_cost


def test_a_reservation_grows_only_within_the_limit() -> None:
    budget = Budget(max_total_tokens=100)
    call = reserve(budget, Spent(tokens=50, calls=1))
    assert call.extend(Spent(tokens=50))
    assert not call.extend(Spent(tokens=1))
    call.settle(Spent(tokens=60, calls=1))
    assert budget.spent.tokens == 60
    assert not call.extend(Spent(tokens=1))


def test_a_budget_can_only_be_raised() -> None:
    budget = Budget(max_cost=1.0)
    budget.add(cost=0.5)
    assert budget.max_cost == 1.5
    with pytest.raises(errors.ConfigError, match="only be raised"):
        budget.add(cost=-1)
    with pytest.raises(errors.ConfigError, match="no max_calls"):
        budget.add(calls=1)
    with pytest.raises(errors.ConfigError, match="must be more than 0"):
        Budget(max_cost=0.0)
    with pytest.raises(errors.ConfigError, match="must be more than 0"):
        Budget(max_total_tokens=-1)
    with pytest.raises(errors.ConfigError, match="must be more than 0"):
        Budget(max_calls=0)


def request(size: int = 1000, model: str = "gemini-2.5-flash") -> ModelRequest:
    made = FORMATS["gemini"]
    path = made.endpoint.replace("gemini-2.5-flash", model)
    found = read_request([find_provider("gemini")], "POST", path, b'{"x":"' + b"a " * size + b'"}')
    assert isinstance(found, ModelRequest)
    return found


def finished(made: ModelRequest, tokens: int, cost: float = 0.0) -> MeteredCall:
    usage = Usage(input=tokens, output=0, coverage="complete")
    return MeteredCall(
        request=made, model=made.model, usage=usage, cost=Cost(cost, "computed"), status=200
    )


async def test_20_calls_at_once_do_not_exceed_the_budget() -> None:
    budget = Budget(max_total_tokens=10_000)
    gate = BudgetGate(budget, lambda _: None)
    highest = running = 0

    async def call() -> bool:
        nonlocal highest, running
        made = request()
        ticket = await gate.admit(made)
        if isinstance(ticket, str):
            return False
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.001)
        running -= 1
        ticket.settle(finished(made, 900))
        return True

    async with asyncio.timeout(60):
        passed = await asyncio.gather(*(call() for _ in range(20)))
    assert budget.spent.tokens <= 10_000
    assert budget.spent.tokens == 900 * sum(passed)
    assert sum(passed) >= 8
    assert highest > 1
    assert isinstance(gate.refusal, errors.BudgetExceeded)


async def test_a_response_ends_where_no_more_can_be_reserved() -> None:
    budget = Budget(max_total_tokens=4000)
    made = request(100)
    ticket = await BudgetGate(budget, lambda _: None).admit(made)
    assert isinstance(ticket, BudgetTicket)
    meter = CallMeter(made)
    meter.start(200, "text/event-stream")
    steps = 0
    while ticket.may_continue(meter):
        meter.streamed_bytes += 300
        steps += 1
        assert steps < 1000
    assert meter.output < 4000
    ticket.settle(MeteredCall(request=made, model=made.model, is_partial=True, output=meter.output))
    assert meter.output < budget.spent.tokens <= 4000


async def test_a_paused_call_is_made_when_the_budget_is_raised() -> None:
    budget = Budget(max_calls=1, on_budget="pause")
    waited: list[str] = []
    gate = BudgetGate(budget, waited.append)
    first = await gate.admit(made := request())
    assert isinstance(first, BudgetTicket)
    first.settle(finished(made, 5))
    second = asyncio.create_task(gate.admit(made))
    while not waited:
        await asyncio.sleep(0)
    assert budget.is_paused
    [text] = waited
    assert "1 of max_calls=1 spent, and it may need 1,030 tokens ($0.0026)" in text
    budget.add(calls=1)
    async with asyncio.timeout(60):
        ticket = await second
    assert isinstance(ticket, BudgetTicket)
    assert not budget.is_paused


async def test_an_unknown_price_refuses_a_limit_on_the_cost_only() -> None:
    made = request(model="gemini-unheard-of")
    gate = BudgetGate(Budget(max_cost=1.0), lambda _: None)
    assert "price of gemini:gemini-unheard-of is not known" in str(await gate.admit(made))
    assert isinstance(gate.refusal, errors.PriceUnknown)
    assert "models.toml" in (gate.refusal.hint or "")
    tokens = BudgetGate(Budget(max_total_tokens=100_000), lambda _: None)
    assert isinstance(await tokens.admit(made), BudgetTicket)


async def test_the_estimate_of_an_input_follows_what_was_reported() -> None:
    budget = Budget(max_total_tokens=3000)
    gate = BudgetGate(budget, lambda _: None)
    made = request(1500)
    first = await gate.admit(made)
    assert isinstance(first, BudgetTicket)
    first.settle(finished(made, 300))
    second = await gate.admit(made)  # by its size alone it would not fit
    assert isinstance(second, BudgetTicket)


def test_one_call_is_set_aside_for_each_part_that_has_made_one() -> None:
    """A branch that has worked can report its result when others have spent the rest."""
    budget = Budget(max_calls=4)
    a, b = budget.part("a"), budget.part("b")
    call = Spent(tokens=10, calls=1)
    for _ in range(2):
        reserve(a, call).settle(call)
    reserve(b, call).settle(call)
    assert shortage(b, call).must_wait  # the last one is that of a, which has not ended
    assert shortage(b, call).text == "3 of max_calls=4 spent, 1 reserved for other calls"
    reserve(a, call).settle(call)
    refused = shortage(b, call)
    assert not refused.must_wait
    assert refused.text == "4 of max_calls=4 spent"
    budget.add(calls=1)
    reserve(b, call).settle(call)


def test_parts_that_wait_for_one_another_do_not_wait_for_ever() -> None:
    budget = Budget(max_total_tokens=100)
    a, b = budget.part("a"), budget.part("b")
    small, large = Spent(tokens=20, calls=1), Spent(tokens=60, calls=1)
    reserve(a, small).settle(small)
    reserve(b, small).settle(small)
    assert shortage(a, large).must_wait
    assert not shortage(b, large).must_wait  # a waits, too: it gives nothing back
    b.close()
    reserve(a, large)


def test_what_is_set_aside_is_given_back_at_the_end_of_a_part() -> None:
    budget = Budget(max_calls=2)
    a, b = budget.part("a"), budget.part("b")
    call = Spent(calls=1)
    reserve(a, call).settle(call)
    assert shortage(b, call).must_wait
    a.close()
    reserve(b, call)


def test_a_budget_is_paused_while_a_call_waits_for_a_raise() -> None:
    budget = Budget(max_calls=1, on_budget="pause")
    part = budget.part("a")
    call = Spent(calls=1)
    reserve(part, call).settle(call)
    assert not budget.states()[0].is_paused
    shortage(part, call)
    assert part.is_paused
    assert budget.states()[0].is_paused
    part.stop_waiting()
    assert not budget.states()[0].is_paused
    shortage(part, call)
    budget.add(calls=1)
    assert not budget.states()[0].is_paused


def test_a_limit_is_raised_to_a_total_only_if_that_is_higher() -> None:
    budget = Budget(max_total_tokens=100)
    assert budget.missing(Raise(tokens=150, calls=3)) == Raise(tokens=50, calls=3)
    for total in (100, 99):
        with pytest.raises(errors.ConfigError, match=f"max_total_tokens is 100 already.*{total}"):
            budget.missing(Raise(tokens=total))
