"""Random calls with random catalogues: what is booked is at least what the price list says, and a
limit on the cost holds.

The prices are read a second time here, from the rows of the catalogue: of several readings the
cheapest."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from corral import Budget
from corral._metering import prices
from corral._metering.budget_gate import BudgetGate, BudgetTicket
from corral._metering.calls import CallMeter, MeteredCall, ModelRequest, estimated_usage
from corral._metering.proxy.open_calls import cost_of
from corral._models.catalogue import Catalogue, CatalogueEntry, Prices, Tier
from corral._models.registry import find_provider
from corral.messages import Message
from corral.model_types import Request
from corral.values import Usage

RUNS = 2_000
MODELS = ("pro", "flash", "mini")
ANSWERS = ("", "-preview-06-05", "-chat-latest", "-001", "-2026-01-02")
CHUNK = 200
"""Tokens of output between two looks at the budget."""
MILLION = 1_000_000


def random_prices(random: Random, price: float, output: float) -> dict[str, float]:
    row = {"input": price, "output": output}
    if random.random() < 0.5:
        row["cache_read"] = price * random.choice((0, 0.1, 0.5))
    if random.random() < 0.3:
        row["cache_write"] = price * random.choice((1, 1.25, 2))
    return row


def random_catalogue(random: Random) -> Catalogue:
    entries: list[CatalogueEntry] = []
    for name in random.sample(MODELS, random.randint(1, 3)):
        price = random.choice((0.1, 1, 2.5, 10))
        output = price * random.choice((1, 4, 8))
        base = Prices(**random_prices(random, price, output))
        above = random.choice((500, 3_000))
        tier = Tier(above=above, **random_prices(random, 2 * price, 2 * output))
        tiers = (tier,) if random.random() < 0.5 else ()
        entries.append(
            CatalogueEntry(
                id=f"gemini:{name}",
                aliases=(f"gemini:the-{name}",) if random.random() < 0.5 else (),
                prices=None if random.random() < 0.2 else base,
                tiers=tiers,
            )
        )
    return Catalogue(entries)


def readings(entry: CatalogueEntry | None, usage: Usage) -> Iterator[float]:
    """What a call costs, by each reading of the rows of a model."""
    rows = () if entry is None else (*((entry.prices,) if entry.prices else ()), *entry.tiers)
    used, read, written = usage.input or 0, usage.cache_read or 0, usage.cache_write or 0
    for row in rows:
        for own_read in {row.input, *(each.cache_read for each in rows)}:
            for own_write in {row.input, *(each.cache_write for each in rows)}:
                cost = (used - read - written) * row.input + (usage.output or 0) * row.output
                if own_read is not None and own_write is not None:
                    exact_read = row.cache_read if row.cache_read is not None else own_read
                    exact_write = row.cache_write if row.cache_write is not None else own_write
                    yield (cost + read * exact_read + written * exact_write) / MILLION


class Server:
    """Answers calls, and keeps what each of them used. It may name another model."""

    def __init__(self, random: Random, catalogue: Catalogue) -> None:
        self._random = random
        self._catalogue = catalogue
        self.log: list[float] = []
        """The cheapest reading of each call."""

    def answer(self, ticket: BudgetTicket, made: ModelRequest, limit: int) -> MeteredCall:
        random = self._random
        output, wanted, is_cut = 0, random.randint(0, limit), False
        meter = CallMeter(made)
        while output < wanted and not is_cut:
            output = min(wanted, output + CHUNK)
            meter.streamed_bytes = output * 4
            is_cut = not ticket.may_continue(meter)
        used = random.randint(-(-made.input_bound * 4 // 5), made.input_bound)
        read = random.randint(0, used) if random.random() < 0.6 else 0
        written = random.randint(0, used - read) if random.random() < 0.3 else 0
        usage = Usage(input=used, output=output, coverage="complete")
        usage = replace(usage, cache_read=read or None, cache_write=written or None)
        name = random.choice((*(made.model + ending for ending in ANSWERS), "gateway/x", *MODELS))
        asked = self._catalogue.lookup(made.model_id)
        answered = self._catalogue.lookup(f"gemini:{name}")
        self.log.append(min((*readings(asked, usage), *readings(answered, usage))))
        call = MeteredCall(request=made, model=name, usage=usage, output=output, status=200)
        if is_cut:
            return replace(call, usage=estimated_usage(made, Usage(), output), is_partial=True)
        return call


@pytest.fixture
def catalogues(monkeypatch: pytest.MonkeyPatch) -> list[Catalogue]:
    """The last one is used."""
    made: list[Catalogue] = []
    monkeypatch.setattr(prices, "catalogue", lambda: made[-1])
    return made


@pytest.mark.spine
async def test_random_runs_book_what_was_used_and_stay_within_their_limit(
    catalogues: list[Catalogue],
) -> None:
    estimates = refused = 0
    for seed in range(RUNS):
        random = Random(seed)
        catalogues.append(random_catalogue(random))
        limit = random.choice((0.005, 0.02, 0.1))
        budget, server = Budget(max_cost=limit), Server(random, catalogues[-1])
        gate = BudgetGate(budget, lambda _text: None)
        more = 0.0
        for _ in range(12):
            entry = random.choice([*catalogues[-1].entries()])
            made = ModelRequest(
                provider=find_provider("gemini"),
                model=random.choice((entry.id, *entry.aliases)).partition(":")[2],
                is_streamed=True,
                input_bound=random.randint(1, 4_000),
                output_limit=None,
            )
            ticket = await gate.admit(made)
            if isinstance(ticket, str):
                refused += 1
                continue
            call = server.answer(ticket, made, 3_000)
            call = replace(call, cost=cost_of(made, call.model, call.usage))
            assert call.cost.usd is not None, (seed, call)
            estimates += call.cost.source == "estimated" and not call.is_partial
            before, reserved = budget.spent.cost, ticket.reservation.amount.cost
            ticket.settle(call)
            # Only a dearer model than the one that was asked, or the output since the last look,
            # may exceed what was reserved.
            booked = budget.spent.cost - before
            dearest = max(r.output for e in catalogues[-1].entries() for r in all_rows(e))
            is_same = prices.catalogue().lookup(f"gemini:{call.model}") in (entry, None)
            if is_same:
                assert booked <= reserved + CHUNK * dearest / MILLION + 1e-12, (seed, call)
            more += max(0.0, booked - reserved)
        spent = sum(server.log)
        assert budget.spent.cost >= spent - 1e-9, seed
        assert budget.spent.cost <= limit + more + 1e-9, seed
        assert spent <= limit + more + 1e-9, seed
    assert estimates > RUNS  # the runs are worth something
    assert refused > RUNS // 2


def all_rows(entry: CatalogueEntry) -> tuple[Prices, ...]:
    return (*((entry.prices,) if entry.prices else ()), *entry.tiers)


def request(text: str) -> Request:
    return Request(model="gemini:gemini-2.5-flash", messages=(Message.user(text),))


@pytest.mark.parametrize(("streamed", "output"), [(0, 1024), (9_000, 3_000)])
async def test_an_own_call_without_a_response_counts_with_its_estimate(
    streamed: int, output: int
) -> None:
    budget = Budget(max_cost=1.0)
    gate = BudgetGate(budget, lambda _text: None)
    call = await gate.reserve(request("x" * 2_000))
    call.settle_response(None, was_billed=True, streamed=streamed)
    row = prices.find_prices("gemini:gemini-2.5-flash", 0)
    assert row is not None
    assert budget.spent.tokens >= 1_000 + output
    assert budget.spent.cost >= (1_000 * row.input + output * row.output) / MILLION
    free = await gate.reserve(request("x"))
    before = budget.spent.cost
    free.settle_response(None, was_billed=False)
    assert budget.spent.cost == before


def model_request(bound: int) -> ModelRequest:
    return ModelRequest(
        provider=find_provider("gemini"), model="pro", is_streamed=True, input_bound=bound
    )


async def admitted(
    budget: Budget, made: ModelRequest, gate: BudgetGate | None = None
) -> BudgetTicket:
    ticket = await (gate or BudgetGate(budget, lambda _text: None)).admit(made)
    assert isinstance(ticket, BudgetTicket)
    return ticket


@pytest.fixture
def two_tiers(catalogues: list[Catalogue]) -> None:
    base, tier = Prices(input=1, output=10), Tier(above=2_000, input=100, output=1_000)
    catalogues.append(Catalogue([CatalogueEntry(id="gemini:pro", prices=base, tiers=(tier,))]))


@pytest.mark.usefixtures("two_tiers")
async def test_a_complete_call_without_a_cost_is_booked_by_its_tokens() -> None:
    budget = Budget(max_cost=1.0)
    made = model_request(1_000)
    ticket = await admitted(budget, made)
    usage = Usage(input=700, output=20, coverage="complete")
    ticket.settle(MeteredCall(request=made, model="pro", usage=usage, output=900, status=200))
    assert budget.spent.tokens == 720
    assert budget.spent.cost == pytest.approx((700 + 20 * 10) / MILLION)
    refused = await admitted(budget, made)
    refused.settle(MeteredCall(request=made, model="pro", status=429))
    assert budget.spent.tokens == 720


@pytest.mark.usefixtures("two_tiers")
async def test_the_tier_of_an_estimate_is_that_of_the_tokens_that_are_estimated() -> None:
    """Earlier input had twice as many tokens as its size says."""
    budget = Budget(max_cost=10.0)
    gate = BudgetGate(budget, lambda _text: None)
    made = model_request(900)
    first = await admitted(budget, made, gate)
    usage = Usage(input=1_800, output=1, coverage="complete")
    first.settle(MeteredCall(request=made, model="pro", usage=usage, status=200))
    second = await admitted(budget, made, gate)
    assert second.reservation.amount.cost > 2_000 * 100 / MILLION
