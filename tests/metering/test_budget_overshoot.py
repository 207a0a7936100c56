"""20 sub-agents that call their model at the same time never exceed their budget: processes with a
proxy each that share a budget, and the calls of one process."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import pytest
from support.raw_server import RawConnection, raw_server

import corral
from corral._metering.turn_usage import UsageQuery
from corral._sessions import index
from corral.events import Event, ModelCall
from corral.testing import ModelServer, Turn

PROGRAM = Path(__file__).parents[1] / "programs" / "calling_gemini.py"
USED = {"input": 500, "output": 100}
AT_ONCE = 20
ROUNDS = 3
TOKENS = sum(USED.values())
COST = (500 * 0.30 + 100 * 2.50) / 1_000_000


class BudgetLimits(TypedDict, total=False):
    max_calls: int
    max_total_tokens: int
    max_cost: float


pytestmark = pytest.mark.timeout(120)


LIMITS: dict[str, BudgetLimits] = {
    "calls": {"max_calls": 30},
    "tokens": {"max_total_tokens": 30 * TOKENS},
    "cost": {"max_cost": 30 * COST},
}


def overlap(calls: list[ModelCall]) -> bool:
    """Whether two of the calls were made at the same time."""
    spans = sorted((call.ts - call.duration_ms / 1000, call.ts) for call in calls)
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("processes", "limited"), [(AT_ONCE, "tokens"), (AT_ONCE, "cost"), (1, "calls"), (1, "tokens")]
)
async def test_20_sub_agents_that_call_at_once_do_not_exceed_their_budget(
    tmp_path: Path, processes: int, limited: str
) -> None:
    budget = corral.Budget(**LIMITS[limited])
    calls: list[ModelCall] = []

    def collect(event: Event) -> None:
        if isinstance(event, ModelCall):
            calls.append(event)

    with ModelServer(lambda _: Turn(text="done", usage=USED, delay=0.05)) as server:

        async def run() -> corral.Result:
            return await corral.run(
                "gemini-cli",
                f"{AT_ONCE // processes} {ROUNDS}",
                program=str(PROGRAM),
                cwd=tmp_path,
                env={"GEMINI_API_KEY": "real-key", "GOOGLE_GEMINI_BASE_URL": server.url},
                budget=budget,
                meter=True,
                record=False,
                sandbox="off",
                track_files=False,
                timeout=100,
                on_event=collect,
            )

        results = await asyncio.gather(*(run() for _ in range(processes)))
        made = len(server.requests)
    spent = budget.spent
    assert (spent.calls, spent.tokens) == (made, made * TOKENS)
    assert budget.max_calls is None or spent.calls <= budget.max_calls
    assert budget.max_total_tokens is None or spent.tokens <= budget.max_total_tokens
    assert budget.max_cost is None or spent.cost <= budget.max_cost
    # Not all of it is used: a call may need more than it will use. But no call is lost.
    assert made == 30 if limited == "calls" else 24 <= made <= 30
    assert overlap(calls)
    refused = [result for result in results if result.status == "max_budget"]
    assert refused
    assert all(result.error and result.error.code == "budget_exceeded" for result in refused)
    assert sum(result.usage.total or 0 for result in results) == spent.tokens


async def test_calls_that_are_reset_before_their_response_begins_are_counted(
    tmp_path: Path,
) -> None:
    received = tmp_path / "received"
    received.touch()

    async def never_answer(line: RawConnection) -> None:
        await line.request()
        with received.open("ab") as file:
            file.write(b".")
        await line.wait_closed()

    events: list[Event] = []
    budget = corral.Budget(max_cost=0.50)
    async with raw_server(never_answer) as server:
        result = await corral.run(
            "gemini-cli",
            f"60 {received}",
            program=str(PROGRAM.with_name("resetting_gemini.py")),
            cwd=tmp_path,
            env={"GEMINI_API_KEY": "real-key", "GOOGLE_GEMINI_BASE_URL": server.url},
            budget=budget,
            meter=True,
            sandbox="off",
            timeout=100,
            on_event=events.append,
        )
    made = received.stat().st_size
    calls = [event for event in events if isinstance(event, ModelCall)]
    assert result.status == "max_budget"
    assert len(calls) == made == budget.spent.calls == 16
    assert 0.45 < budget.spent.cost <= 0.50
    assert all(call.partial and call.status is None for call in calls)
    assert {call.usage.coverage for call in calls} == {"estimated"}
    assert result.usage.coverage == "estimated"
    assert (result.usage.input or 0) >= made * 100_000
    assert result.cost.source == "estimated"
    assert result.cost.usd == pytest.approx(budget.spent.cost)
    total = index.usage_report(UsageQuery(by="run")).total
    assert total.cost_by_source == {"estimated": result.cost.usd}
    assert (total.usage.coverage, total.turns_partial) == ("estimated", 1)
