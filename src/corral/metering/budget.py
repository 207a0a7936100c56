"""Limits on what model calls may use: money, tokens, calls.

Theory of operation
-------------------
A ``Budget`` counts what was spent, and what is reserved for model calls that are being made. A call
reserves an upper estimate of its use before it is sent, extends the reservation while its response
comes, and settles it with its real use. So calls that run at the same time cannot exceed the limit
together. A budget may be part of another one: a call must fit into all of them.

A call that does not fit while other calls are being made has to wait, because these usually use
less than they reserved. If there is no other call, it is refused, or waits until the limit is
raised, if the budget pauses.

There is no I/O and no event loop here. ``on_change`` registers a function that is called whenever
a waiting call should try again; it may be called from any thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import msgspec

from corral.errors import BudgetExceeded, ConfigError
from corral.options import BUDGET_LIMITS, OnBudget
from corral.values import BudgetState

HINT = "Raise the limit and resume the session, or ask for less."

_lock = threading.RLock()
"""For all budgets: they are parts of one another."""


class Spent(msgspec.Struct, frozen=True):
    """Money in USD, tokens and calls."""

    cost: float = 0.0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cost + other.cost, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.cost - other.cost, self.tokens - other.tokens, self.calls - other.calls)


class Raise(msgspec.Struct, frozen=True):
    """By how much limits are raised."""

    cost: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def amounts(self) -> dict[str, float]:
        """The amounts that are given, by the name of the limit."""
        given = {"max_cost": self.cost, "max_total_tokens": self.tokens, "max_calls": self.calls}
        return {name: amount for name, amount in given.items() if amount is not None}


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

    is_shared = False
    """Whether other processes change it, too: a call that waits must look again."""

    def __init__(
        self,
        *,
        max_cost: float | None = None,
        max_total_tokens: int | None = None,
        max_calls: int | None = None,
        on_budget: OnBudget = "stop",
        parent: Budget | None = None,
    ) -> None:
        """With ``on_budget="pause"``, a call that does not fit waits until ``add`` raises the
        limit. ``parent`` is a budget that this one is a part of. Raises ``ConfigError``."""
        check_limits(max_cost, max_total_tokens, max_calls)
        self.max_cost = max_cost
        self.max_total_tokens = max_total_tokens
        self.max_calls = max_calls
        self.pauses = on_budget == "pause"
        self.parent = parent
        self.spent = Spent()
        """What the calls so far have used. A call of which the use is not known counts with its
        estimate."""
        self.owner = ""
        """The id of the run that must know of each raise: its agents use the budget, but it is
        raised with the id of the run. Empty: there is none."""
        self.is_paused = False
        """Whether a call waits until the limit is raised."""
        self._reserved = Spent()
        """For calls that are being made: ``calls`` is how many there are."""
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        limits = ", ".join(f"{limit.name}={limit.value:g}" for limit in self._limits())
        return f"<Budget {limits or 'without a limit'}>"

    @property
    def limits_cost(self) -> bool:
        """Whether the cost of a call must be known: here, or in a budget that this is part of."""
        return any(each.max_cost is not None for each in self.chain())

    def add(
        self, *, cost: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> None:
        """Raise the limits by these amounts. Calls that wait try again. Raises ``ConfigError`` for
        a limit that is not set, or an amount that is not positive."""
        self.raise_limits(Raise(cost, tokens, calls))
        self._notify()

    def raise_limits(self, more: Raise) -> None:
        """Raise the limits of this budget alone; all of them or none. Raises ``ConfigError``."""
        new: dict[str, float] = {}
        if not more.amounts():
            raise ConfigError("no amount is given", hint="Give a cost, tokens or calls.")
        for name, amount in more.amounts().items():
            limit: float | None = getattr(self, name)
            if limit is None:
                raise ConfigError(f"the budget has no {name} that could be raised")
            if not 0 < amount < math.inf:
                raise ConfigError(f"a budget can only be raised, got: {amount:g}")
            new[name] = limit + amount
        for name, limit in new.items():
            setattr(self, name, limit)

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
                    hint="Write +AMOUNT to add to it.",
                )
            more[name] = total - (limit or 0)
        tokens, calls = more.get("max_total_tokens"), more.get("max_calls")
        return Raise(
            more.get("max_cost"),
            None if tokens is None else int(tokens),
            None if calls is None else int(calls),
        )

    def reserve(self, amount: Spent) -> Reservation | Shortage:
        """Reserve an estimate for one call in this budget and all that it is part of."""
        with _lock:
            before = [budget.is_paused for budget in self.chain()]
            found = self._take_all(amount)
            is_changed = before != [budget.is_paused for budget in self.chain()]
        if is_changed:
            self._notify()
        return found or Reservation(self, amount)

    def _take_all(self, amount: Spent) -> Shortage | None:
        taken: list[Budget] = []
        for budget in self.chain():
            shortage = budget.take(amount)
            if shortage is not None:
                for each in taken:
                    each.release(amount, Spent())
                return shortage
            taken.append(budget)
        for budget in taken:
            budget.is_paused = False
        return None

    def take(self, amount: Spent) -> Shortage | None:
        """Reserve an estimate for one call in this budget alone."""
        text = self._shortage(amount)
        if not text:
            self._reserved += amount
            return None
        is_alone = not self._reserved.calls
        self.is_paused = is_alone and self.pauses
        return Shortage(text, self, not is_alone or self.pauses)

    def take_more(self, more: Spent) -> bool:
        """Reserve more for a call that is being made, in this budget alone; False if it does not
        fit."""
        if self._shortage(more):
            return False
        self._reserved += more
        return True

    def release(self, reserved: Spent, used: Spent) -> None:
        """Replace what was reserved by what was used, in this budget alone."""
        self._reserved -= reserved
        self.spent += used

    def record(self, used: Spent) -> None:
        """Count what was used without a reservation."""
        with _lock:
            for budget in self.chain():
                budget.release(Spent(), used)
        self._notify()

    def is_spent(self) -> str:
        """Which limit is reached; empty if none is."""
        for budget in self.chain():
            budget.refresh()
            for limit in budget._limits():
                if limit.of(budget.spent) >= limit.value:
                    return limit.describe(budget.spent)
        return ""

    def refresh(self) -> None:
        """Read what others have changed, if it is shared."""

    def check(self) -> None:
        """Raises ``BudgetExceeded`` if a limit is reached and the budget does not pause."""
        text = "" if any(each.pauses for each in self.chain()) else self.is_spent()
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
        return tuple(
            BudgetState(
                max_cost=each.max_cost,
                max_total_tokens=each.max_total_tokens,
                max_calls=each.max_calls,
                cost=each.spent.cost,
                tokens=each.spent.tokens,
                calls=each.spent.calls,
                is_paused=each.is_paused,
            )
            for each in self.chain()
        )

    def chain(self) -> Iterator[Budget]:
        """This budget, then those that it is part of."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.parent

    def extend(self, more: Spent) -> bool:
        """Reserve more for a call that is being made; False if it does not fit."""
        taken: list[Budget] = []
        with _lock:
            for budget in self.chain():
                if not budget.take_more(more):
                    for each in taken:
                        each.release(more, Spent())
                    return False
                taken.append(budget)
        return True

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

    def _shortage(self, more: Spent) -> str:
        """Which limit ``more`` would exceed."""
        total = self.spent + self._reserved + more
        over = (limit for limit in self._limits() if limit.of(total) > limit.value)
        return next((limit.describe(self.spent) for limit in over), "")

    def _limits(self) -> Iterator[_Limit]:
        for name in BUDGET_LIMITS:
            limit: float | None = getattr(self, name)
            if limit is not None:
                yield _Limit(name, limit)


class _Limit(msgspec.Struct, frozen=True):
    name: str
    value: float

    def of(self, amount: Spent) -> float:
        """The part of an amount that this limits."""
        parts = {"max_cost": amount.cost, "max_total_tokens": amount.tokens}
        return parts.get(self.name, amount.calls)

    def describe(self, spent: Spent) -> str:
        used = self.of(spent)
        shown = f"${used:.4f}" if self.name == "max_cost" else f"{used:,}"
        return f"{shown} of {self.name}={self.value:g} spent"


class Reservation:
    """What is reserved for one call."""

    def __init__(self, budget: Budget, amount: Spent) -> None:
        self._budget = budget
        self._is_open = True
        self.amount = amount

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


def check_limits(
    max_cost: float | None, max_total_tokens: int | None, max_calls: int | None
) -> None:
    """Raises ``ConfigError`` for a limit that is not positive."""
    for name, limit in (
        ("max_cost", max_cost),
        ("max_total_tokens", max_total_tokens),
        ("max_calls", max_calls),
    ):
        if limit is not None and not limit > 0:
            raise ConfigError(f"{name} must be greater than 0, got: {limit:g}")
