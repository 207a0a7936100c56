"""Budgets that several processes share through a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from corral import errors
from corral._core.spending import BudgetLimits, Raise, Spent
from corral._metering.budget import Budget, Reservation, Shortage
from corral._metering.budget_gate import BudgetGate
from corral._metering.budget_stores import FileBudgetStore, raise_limits, set_limits, settle_holder
from corral.model_types import Request

CALL = Spent(tokens=10, calls=1)


@pytest.fixture
def store(tmp_path: Path) -> FileBudgetStore:
    made = FileBudgetStore(tmp_path / "budgets" / "run.json")
    set_limits(made, BudgetLimits(max_total_tokens=100, max_calls=3))
    return made


def test_what_one_holder_reserves_the_other_does_not_have(store: FileBudgetStore) -> None:
    one, other = Budget.shared(store, "run/a.1"), Budget.shared(store, "run/b.1")
    calls = [one.reserve(CALL), other.reserve(CALL), one.reserve(CALL)]
    refused = other.reserve(CALL)
    assert isinstance(refused, Shortage)
    assert refused.must_wait
    for call in calls:
        assert isinstance(call, Reservation)
        assert call.extend(Spent(tokens=5))
        call.settle(Spent(tokens=12, calls=1))
    refused = one.reserve(CALL)
    assert isinstance(refused, Shortage)
    assert not refused.must_wait
    assert refused.text == "3 of max_calls=3 spent"
    with pytest.raises(errors.BudgetExceeded, match="3 of max_calls=3"):
        other.check()
    assert Budget.read(store).spent == Spent(tokens=36, calls=3)


def test_a_node_is_limited_by_its_own_limit_and_by_that_of_the_run(store: FileBudgetStore) -> None:
    node = Budget(max_calls=1, parent=Budget.shared(store, "run/a.1"))
    first = node.reserve(CALL)
    assert isinstance(first, Reservation)
    first.settle(CALL)
    assert isinstance(node.reserve(CALL), Shortage)
    assert Budget.read(store).spent.calls == 1
    node.close()  # nothing is set aside for it any more
    other = Budget(max_calls=9, parent=Budget.shared(store, "run/b.1"))
    assert isinstance(other.reserve(CALL), Reservation)
    assert isinstance(other.reserve(CALL), Reservation)
    assert isinstance(other.reserve(CALL), Shortage)
    # What was taken in the inner budget was given back.
    assert other.spent == Spent()
    assert other.reserve(Spent(tokens=1)) is not None


def test_what_a_dead_process_had_reserved_counts_as_spent(store: FileBudgetStore) -> None:
    assert isinstance(Budget.shared(store, "run/a.1").reserve(CALL), Reservation)
    other = Budget.shared(store, "run/b.1")
    assert other.spent == Spent()
    settle_holder(store, "run/a.1")
    settle_holder(store, "run/a.1")
    other.refresh()
    assert other.spent == CALL
    assert isinstance(other.reserve(CALL), Reservation)
    restarted = Budget.shared(store, "run/b.1")
    assert restarted.spent == CALL + CALL


def test_a_limit_is_raised_once_per_key(store: FileBudgetStore) -> None:
    raise_limits(store, Raise(tokens=50), "gate.1")
    raise_limits(store, Raise(tokens=50), "gate.1")
    raise_limits(store, Raise(calls=2))
    budget = Budget.read(store)
    assert (budget.max_total_tokens, budget.max_calls) == (150, 5)
    with pytest.raises(errors.ConfigError, match="no max_cost"):
        raise_limits(store, Raise(cost=1.0))
    with pytest.raises(errors.ConfigError, match="only be raised"):
        Budget.shared(store, "x").add(calls=0)
    set_limits(store, BudgetLimits(max_calls=1))
    assert Budget.read(store).max_calls == 3


def test_without_its_store_no_call_is_made(store: FileBudgetStore, tmp_path: Path) -> None:
    budget = Budget.shared(store, "run/a.1")
    store.remove()
    refused = budget.reserve(CALL)
    assert isinstance(refused, Shortage)
    assert "was removed" in refused.text
    (tmp_path / "budgets" / "run.json").write_text("not JSON")
    refused = budget.reserve(CALL)
    assert isinstance(refused, Shortage)
    assert "cannot be used" in refused.text


async def test_a_waiting_call_notices_what_another_process_changes(store: FileBudgetStore) -> None:
    set_limits(store, BudgetLimits(max_calls=1, pauses=True))
    waited: list[str] = []
    gate = BudgetGate(Budget.shared(store, "run/a.1"), waited.append)
    model = Request(model="gemini:gemini-2.5-flash", messages=())
    first = await gate.reserve(model)
    first.settle_response(None, was_billed=True)
    second = asyncio.create_task(gate.reserve(model))
    while not waited:
        await asyncio.sleep(0.001)
    raise_limits(store, Raise(calls=1))
    async with asyncio.timeout(60):
        await second


PROCESS = """
import sys
from pathlib import Path
from corral._metering.budget import Budget, Reservation
from corral._metering.budget_stores import FileBudgetStore
from corral._core.spending import Spent
budget = Budget.shared(FileBudgetStore(Path(sys.argv[1])), sys.argv[2])
made = 0
while True:
    found = budget.reserve(Spent(tokens=1, calls=1))
    if isinstance(found, Reservation):
        made += 1
        found.settle(Spent(tokens=1, calls=1))
    elif not found.must_wait:
        break
print(made)
"""


def test_processes_make_exactly_as_many_calls_as_the_budget_has(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    set_limits(FileBudgetStore(path), BudgetLimits(max_calls=200))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(path), f"run/{n}"], stdout=subprocess.PIPE
        )
        for n in range(3)
    ]
    made = [int(each.communicate(timeout=120)[0]) for each in running]
    assert sum(made) == 200
    assert Budget.read(FileBudgetStore(path)).spent.calls == 200
