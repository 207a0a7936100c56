"""Limits on what model calls may use: money, tokens, calls.

Theory of operation
-------------------
A ``Budget`` counts what was spent, and what is reserved for model calls that are being made. A call
reserves an upper estimate of its use before it is sent, extends the reservation while its response
comes, and settles it with its real use. So calls that run at the same time cannot exceed the limit
together. A budget may be part of another one: a call must fit into all of them.

A call that does not fit while other calls are being made has to wait, because these usually use
less than they reserved. If there is no other call, it is refused, or waits until the limit is
raised, if the budget pauses. Several nodes or tasks that share a budget are its *holders*
(``part``): for each one that has made a call, another one is set aside, and waited for.

There is no event loop here. ``on_change`` registers a function that is called whenever a waiting
call should try again; it may be called from any thread.

The state is in a store (``budget_stores``). The nodes of a durable run, and the tasks of a durable
batch, run in several processes: agent hosts, workers, also on other machines. Each has a ``Budget``
over the same store: a file with a lock on one machine, a row of the database on a server. Every
reservation is made in the store, alone (``BudgetStore.change``), so calls of all processes together
stay within the limits. A budget of one process has its state in memory.

If the store cannot be read, no call is made. If it cannot be written at the end of a call, the
reservation stays, and what the call used is counted at the next change.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Unpack

import msgspec

from corral._core.spending import (
    LIMITS,
    Amounts,
    BudgetLimits,
    BudgetState,
    LimitKwargs,
    Raise,
    Spent,
    dollars,
)
from corral._metering.budget_stores import (
    NOTHING,
    BudgetStore,
    MemoryBudgetStore,
    StoredBudget,
    raise_limits,
    settle_holder,
)
from corral.errors import BudgetExceeded, ConfigError, StorageFailed
from corral.options import OnBudget

HINT = "Raise the limit and resume the session, or ask for less."

_lock = threading.RLock()
"""For all budgets: they are parts of one another."""


class Shortage(msgspec.Struct, frozen=True):
    """A call does not fit."""

    text: str
    """Which limit is reached, and what was spent."""
    budget: Budget
    must_wait: bool
    """Other calls are being made, or the budget pauses."""


class Budget:
    """A limit on the model calls of one run, or of several that share it.

    ::

        budget = corral.Budget(max_cost=5.00)
        for file in files:
            corral.run_sync("gemini-cli", f"Review {file}", budget=budget)
        print(budget.spent.cost)
    """

    max_cost: float | None
    max_total_tokens: int | None
    max_calls: int | None
    pauses: bool
    spent: Spent
    """What the calls so far have used. A call of which the use is not known counts with its
    estimate."""

    def __init__(
        self,
        *,
        on_budget: OnBudget = "stop",
        parent: Budget | None = None,
        **given: Unpack[LimitKwargs],
    ) -> None:
        """With ``on_budget="pause"``, a call that does not fit waits until ``add`` raises the
        limit. ``parent`` is a budget that this one is a part of. Raises ``ConfigError``."""
        limits = BudgetLimits(**given, pauses=on_budget == "pause")
        for name, limit in limits.as_dict().items():
            if not limit > 0:
                raise ConfigError(f"{name} must be more than 0, got: {limit:g}")
        state = StoredBudget(limits=limits)
        self._store: BudgetStore = MemoryBudgetStore(state)
        self._holder = ""
        self.is_shared = False
        """Whether other processes change it, too: a call that waits must look again."""
        self.parent = parent
        self.owner = ""
        """The id of the run that must know of each raise: its agents use the budget, but it is
        raised with the id of the run. Empty: there is none."""
        self.is_paused: bool = False
        """Whether a call of this holder waits until the limit is raised."""
        self._unsettled: list[tuple[Spent, Spent]] = []
        """What could not be stored: reserved and used."""
        self._listeners: list[Callable[[], None]] = []
        self._load(state)

    @classmethod
    def shared(cls, store: BudgetStore, holder: str, parent: Budget | None = None) -> Budget:
        """The budget in a store, as one holder uses it. What the holder had reserved counts as
        spent. Raises ``StorageFailed``."""
        settle_holder(store, holder)
        budget = cls(parent=parent)
        budget._store, budget._holder, budget.is_shared = store, holder, True
        budget.refresh()
        return budget

    @classmethod
    def read(cls, store: BudgetStore) -> Budget:
        """A copy in memory. Raises ``StorageFailed``."""
        budget = cls()
        with store.change() as state:
            budget._store = MemoryBudgetStore(state)
        budget._load(state)
        return budget

    def part(self, holder: str) -> Budget:
        """This budget, as one of several holders in this process uses it until it calls ``close``.
        Itself, if it is that of one holder already."""
        if self._holder:
            return self
        part = Budget(parent=None if self.parent is None else self.parent.part(holder))
        part._store, part._holder, part._listeners = self._store, holder, self._listeners
        part.owner = self.owner
        part.refresh()
        return part

    def close(self) -> None:
        """The holder has ended: nothing is set aside for it any more."""
        with _lock, contextlib.suppress(StorageFailed):  # it is settled later
            for budget in self.chain():
                settle_holder(budget._store, budget._holder)
        self._notify()

    def __repr__(self) -> str:
        limits = ", ".join(f"{limit.name}={limit.value:g}" for limit in self._limits())
        return f"<Budget {limits or 'without a limit'}>"

    @property
    def limits_cost(self) -> bool:
        """Whether the cost of a call must be known: here, or in a budget that this is part of."""
        return any(each.max_cost is not None for each in self.chain())

    def add(self, *, cost: float | None = None, **others: Unpack[Amounts]) -> None:
        """Raise the limits by these amounts: ``cost`` in USD, ``tokens`` and ``calls``. Calls that
        wait try again. Raises ``ConfigError`` for a limit that is not set, or an amount that is
        not positive."""
        self.raise_limits(Raise(cost, **others))

    def raise_limits(self, more: Raise) -> None:
        """Raise the limits; all of them or none. Calls that wait try again. Raises
        ``ConfigError``."""
        with _lock:
            raise_limits(self._store, more)
            self.refresh()
        self._notify()

    @property
    def has_limits(self) -> bool:
        return any(True for _ in self._limits())

    def missing(self, totals: Raise) -> Raise:
        """By how much the limits must be raised to have these values. Raises ``ConfigError`` if a
        limit is that high already."""
        more: dict[str, float] = {}
        for name, total in totals.amounts().items():
            limit: float | None = getattr(self, name)
            if limit is not None and not total > limit:
                raise ConfigError(
                    f"{name} is {limit:g} already: it can only be raised, got: {total:g}",
                    hint="corral runs budget ID +1.00 adds to it.",
                )
            more[name] = total - (limit or 0)
        return Raise.of(more)

    def reserve(self, amount: Spent) -> Reservation | Shortage:
        """Reserve an estimate for one call in this budget and all that it is part of."""
        with _lock:
            before = [budget.is_paused for budget in self.chain()]
            shortage = self._take_from_all(amount, Budget.take)
            is_changed = before != [budget.is_paused for budget in self.chain()]
        if is_changed:
            self._notify()
        return shortage or Reservation(self, amount)

    def extend(self, more: Spent) -> bool:
        """Reserve more for a call that is being made; False if it does not fit."""
        with _lock:
            return self._take_from_all(more, Budget.take_more) is None

    def _take_from_all(
        self, amount: Spent, take: Callable[[Budget, Spent], Shortage | None]
    ) -> Shortage | None:
        """Reserve in this budget and all that it is part of, or in none."""
        taken: list[Budget] = []
        for budget in self.chain():
            shortage = take(budget, amount)
            if shortage is not None:
                for other in taken:
                    other.release(amount, NOTHING)
                return shortage
            taken.append(budget)
        return None

    def take(self, amount: Spent) -> Shortage | None:
        """Reserve an estimate for one call in this budget alone."""
        try:
            with self._change() as state:
                is_alone = state.is_alone(self._holder)
                text = self._reserve(state, amount)
                must_wait = bool(text) and (not is_alone or state.limits.pauses)
                state.waiting.pop(self._holder, None)
                if must_wait:
                    state.waiting[self._holder] = is_alone
                elif not text:
                    state.next_calls.pop(self._holder, None)
                    if not self._exceeded(state, amount):
                        state.next_calls[self._holder] = amount
        except StorageFailed as error:
            return Shortage(error.message, self, bool(error.retryable))
        return Shortage(text, self, must_wait) if text else None

    def stop_waiting(self) -> None:
        """The call that did not fit is not made."""
        with _lock, contextlib.suppress(StorageFailed):
            for budget in self.chain():
                with budget._change() as state:
                    state.waiting.pop(budget._holder, None)
        self._notify()

    def take_more(self, more: Spent) -> Shortage | None:
        """Reserve more for a call that is being made, in this budget alone."""
        try:
            with self._change() as state:
                text = self._reserve(state, more)
        except StorageFailed as error:
            text = error.message
        return Shortage(text, self, must_wait=False) if text else None

    def release(self, reserved: Spent, used: Spent) -> None:
        """Replace what was reserved by what was used, in this budget alone. A call that used
        nothing was not made: nothing is set aside for the next."""
        with _lock, contextlib.suppress(StorageFailed):  # it stays reserved
            self._unsettled.append((reserved, used))
            self.refresh()

    def record(self, used: Spent) -> None:
        """Count what was used without a reservation."""
        self.settle(NOTHING, used)

    def reached_limit(self) -> str:
        """Which limit is reached; empty if none is."""
        for budget in self.chain():
            budget.refresh()
            for limit in budget._limits():
                if limit.of(budget.spent) >= limit.value:
                    return limit.describe(budget.spent)
        return ""

    def refresh(self) -> None:
        """Read what others have changed, if it is shared. Raises ``StorageFailed``."""
        with self._change():
            pass

    def check(self) -> None:
        """Raises ``BudgetExceeded`` if a limit is reached and the budget does not pause."""
        text = "" if any(each.pauses for each in self.chain()) else self.reached_limit()
        if text:
            raise BudgetExceeded(f"the budget is spent: {text}", hint=HINT)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called when something is released or raised, and when a call starts or
        ends to wait for that. Returns the function that ends that."""
        with _lock:
            self._listeners.append(listener)

        def remove() -> None:
            with _lock:
                self._listeners.remove(listener)

        return remove

    def states(self) -> tuple[BudgetState, ...]:
        """The limits and what is spent: of this budget, then of those that it is part of."""
        if not self.is_shared:  # another part may have changed it
            for budget in self.chain():
                budget.refresh()
        return tuple(budget._state for budget in self.chain())

    def chain(self) -> Iterator[Budget]:
        """This budget, then those that it is part of."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.parent

    def settle(self, reserved: Spent, used: Spent) -> None:
        """A call has ended: replace what was reserved for it by what it used."""
        with _lock:
            for budget in self.chain():
                budget.release(reserved, used)
        self._notify()

    def _notify(self) -> None:
        for budget in self.chain():
            for listener in tuple(budget._listeners):
                listener()

    @contextlib.contextmanager
    def _change(self) -> Generator[StoredBudget]:
        """The state, which no one else changes within the block; then the attributes are the same.
        Raises ``StorageFailed``."""
        with _lock:
            with self._store.change() as state:
                if self.is_shared and not state.limits.exist:
                    raise StorageFailed("the budget of the run was removed while it ran")
                for reserved, used in self._unsettled:
                    state.reserve(self._holder, NOTHING - reserved)
                    state.spent += used
                    if used == NOTHING:
                        state.next_calls.pop(self._holder, None)
                yield state
                self._load(state)
            self._unsettled.clear()

    def _load(self, state: StoredBudget) -> None:
        self._state = state.as_state(self._holder)
        for name in LIMITS:
            setattr(self, name, getattr(self._state, name))
        self.pauses, self.spent = state.limits.pauses, state.spent
        self.is_paused = self._state.is_paused

    def _reserve(self, state: StoredBudget, more: Spent) -> str:
        """Reserve, or say which limit ``more`` would exceed."""
        text = self._exceeded(state, more)
        if not text:
            state.reserve(self._holder, more)
        return text

    def _exceeded(self, state: StoredBudget, more: Spent) -> str:
        reserved = state.all_reserved(self._holder)
        for name, value in state.limits.raised(state.raised).as_dict().items():
            limit = _Limit(name, value)
            if limit.of(state.spent + reserved + more) > value:
                return limit.describe(state.spent, reserved)
        return ""

    def _limits(self) -> Iterator[_Limit]:
        for name in LIMITS:
            limit: float | None = getattr(self, name)
            if limit is not None:
                yield _Limit(name, limit)


class _Limit(msgspec.Struct, frozen=True):
    name: str
    value: float

    def of(self, amount: Spent) -> float:
        """The part of an amount that this limits."""
        part: float = getattr(amount, LIMITS[self.name].unit)
        return part

    def describe(self, spent: Spent, reserved: Spent = NOTHING) -> str:
        used, other = (
            dollars(part) if self.name == "max_cost" else f"{part:,}"
            for part in (self.of(spent), self.of(reserved))
        )
        text = f"{used} of {self.name}={self.value:g} spent"
        return f"{text}, {other} reserved for other calls" if self.of(reserved) else text


class Reservation:
    """What is reserved for one call."""

    def __init__(self, budget: Budget, amount: Spent) -> None:
        self._budget = budget
        self._is_open = True
        self.amount: Spent = amount

    def extend(self, more: Spent) -> bool:
        """Reserve more; False if it does not fit."""
        if self._is_open and self._budget.extend(more):
            self.amount += more
            return True
        return False

    def settle(self, used: Spent) -> None:
        """The call has ended, and has used this. Later calls do nothing."""
        if self._is_open:
            self._is_open = False
            self._budget.settle(self.amount, used)


def memory_budget(limits: BudgetLimits, parent: Budget | None) -> Budget | None:
    """The budget of a run in memory; ``parent`` is that of the run around it."""
    if not limits.exist:
        return parent
    at_limit: OnBudget = "pause" if limits.pauses else "stop"
    return Budget(**limits.as_dict(), on_budget=at_limit, parent=parent)
