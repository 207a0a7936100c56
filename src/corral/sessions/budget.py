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

import threading
from collections.abc import Callable, Iterator

import msgspec

from corral.errors import BudgetExceeded, ConfigError
from corral.options import OnBudget
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
        self.is_paused = False
        """Whether a call waits until the limit is raised."""
        self._reserved = Spent()
        self._in_flight = 0
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Budget {', '.join(self._limits()) or 'without a limit'}>"

    @property
    def limits_cost(self) -> bool:
        """Whether the cost of a call must be known: here, or in a budget that this is part of."""
        return any(each.max_cost is not None for each in self.chain())

    def add(
        self, *, cost: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> None:
        """Raise the limits by these amounts. Calls that wait try again. Raises ``ConfigError`` for
        a limit that is not set, or an amount that is not positive."""
        given = {"max_cost": cost, "max_total_tokens": tokens, "max_calls": calls}
        for name, amount in given.items():
            if amount is None:
                continue
            limit: float | None = getattr(self, name)
            if limit is None:
                raise ConfigError(f"the budget has no {name} that could be raised")
            if not amount > 0:
                raise ConfigError(f"a budget can only be raised, got: {amount:g}")
            setattr(self, name, limit + amount)
        self._notify()

    def reserve(self, amount: Spent) -> Reservation | Shortage:
        """Reserve an estimate for one call in this budget and all that it is part of."""
        chain = list(self.chain())
        with _lock:
            before = [budget.is_paused for budget in chain]
            found = self._reserve(chain, amount)
            is_changed = before != [budget.is_paused for budget in chain]
        if is_changed:
            self._notify()
        return found

    def _reserve(self, chain: list[Budget], amount: Spent) -> Reservation | Shortage:
        for budget in chain:
            text = budget._shortage(amount)
            if text:
                alone = not budget._in_flight
                budget.is_paused = alone and budget.pauses
                return Shortage(text, budget, not alone or budget.pauses)
        for budget in chain:
            budget.is_paused = False
            budget._in_flight += 1
            budget._reserved += amount
        return Reservation(self, amount)

    def record(self, used: Spent) -> None:
        """Count what was used without a reservation."""
        with _lock:
            for budget in self.chain():
                budget.spent += used
        self._notify()

    def is_spent(self) -> str:
        """Which limit is reached; empty if none is."""
        texts = (budget._shortage(Spent(calls=1), reached=True) for budget in self.chain())
        return next(filter(None, texts), "")

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
        with _lock:
            chain = list(self.chain())
            if any(budget._shortage(more) for budget in chain):
                return False
            for budget in chain:
                budget._reserved += more
        return True

    def settle(self, reserved: Spent, used: Spent) -> None:
        """A call has ended: replace what was reserved for it by what it used."""
        with _lock:
            for budget in self.chain():
                budget._in_flight -= 1
                budget._reserved -= reserved
                budget.spent += used
        self._notify()

    def _notify(self) -> None:
        for budget in self.chain():
            for listener in tuple(budget._listeners):
                listener()

    def _shortage(self, more: Spent, *, reached: bool = False) -> str:
        """Which limit ``more`` would exceed, or has reached."""
        total = self.spent + self._reserved + more
        for name, limit, sum_, spent in (
            ("max_cost", self.max_cost, total.cost, f"${self.spent.cost:.4f}"),
            ("max_total_tokens", self.max_total_tokens, total.tokens, f"{self.spent.tokens:,}"),
            ("max_calls", self.max_calls, total.calls, f"{self.spent.calls:,}"),
        ):
            if limit is None or sum_ < limit or (sum_ == limit and not reached):
                continue
            return f"{spent} of {name}={limit:g} spent"
        return ""

    def _limits(self) -> Iterator[str]:
        for name in ("max_cost", "max_total_tokens", "max_calls"):
            limit: float | None = getattr(self, name)
            if limit is not None:
                yield f"{name}={limit:g}"


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
