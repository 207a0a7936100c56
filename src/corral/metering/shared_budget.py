"""A budget that several processes share: what is spent and reserved is in a store.

Theory of operation
-------------------
The nodes of a durable run, and the tasks of a durable batch, run in several processes: agent hosts,
workers, also on other machines. Each has a ``SharedBudget`` over the same ``BudgetStore``: a
file with a lock on one machine, a row of the database on a server. Every reservation is made in the
store, alone (``BudgetStore.change``), so calls of all processes together stay within the limits.

What is reserved is recorded with its *holder*, the visit of a node. There are no heartbeats: a
process that dies leaves its reservations behind. They are counted as spent when the same visit is
run again, and when it has ended in any way (``settle_holder``). Until then they stay reserved, so
a crash never makes room for a call that would exceed the limit.

If the store cannot be read, no call is made. If it cannot be written at the end of a call, the
reservation stays, and what the call used is counted at the next change.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from corral.errors import StorageFailed
from corral.metering.budget import Budget, Raise, Shortage, Spent
from corral.system import fs, paths
from corral.values import decode_as

_LARGEST = 1 << 24
"""Bytes of a store file."""


class StoredBudget(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of a store."""

    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_calls: int | None = None
    pauses: bool = False
    raised: Spent = Spent()
    """By how much the limits were raised while it ran."""
    raises: list[str] = []
    """Keys of the raises that were made: each is made once."""
    spent: Spent = Spent()
    reserved: dict[str, Spent] = {}
    """By holder."""

    @property
    def exists(self) -> bool:
        return not self.max_cost is self.max_total_tokens is self.max_calls is None


class BudgetStore(Protocol):
    """Where the state of a shared budget is."""

    def change(self) -> AbstractContextManager[StoredBudget]:
        """The state, which no other process changes within the block. It is stored at the end of
        the block. Raises ``StorageFailed``."""
        ...


class FileBudgetStore:
    """A store for the processes of one machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def change(self) -> Generator[StoredBudget]:
        lock = self._path.with_name(self._path.name + ".lock")
        try:
            paths.make_dir(self._path.parent)
            with fs.exclusive_lock(lock):
                data = fs.read_small(self._path, _LARGEST)
                state = decode_as(data, StoredBudget) if data else StoredBudget()
                yield state
                changed = msgspec.json.encode(state)
                if state.exists and changed != data:
                    fs.write_atomically(self._path, changed, mode=0o600)
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageFailed(f"the budget in {self._path} cannot be used: {error}") from error

    def remove(self) -> None:
        for path in (self._path, self._path.with_name(self._path.name + ".lock")):
            path.unlink(missing_ok=True)


class SharedBudget(Budget):
    """A budget in a store, as one holder uses it."""

    is_shared = True

    def __init__(self, store: BudgetStore, holder: str, parent: Budget | None = None) -> None:
        """Raises ``StorageFailed``."""
        self._store = store
        self._holder = holder
        self._unsettled: list[tuple[Spent, Spent]] = []
        """What could not be stored: reserved and used."""
        settle_holder(store, holder)
        super().__init__(parent=parent)
        self.refresh()

    def take(self, amount: Spent) -> Shortage | None:
        try:
            with self._change():
                return super().take(amount)
        except StorageFailed as error:
            return Shortage(error.message, self, bool(error.retryable))

    def take_more(self, more: Spent) -> bool:
        try:
            with self._change():
                return super().take_more(more)
        except StorageFailed:
            return False

    def release(self, reserved: Spent, used: Spent) -> None:
        self._unsettled.append((reserved, used))
        try:
            with self._change():
                pass
        except StorageFailed:
            return  # it stays reserved

    def raise_limits(self, more: Raise) -> None:
        raise_stored(self._store, more)

    def refresh(self) -> None:
        with self._change():
            pass

    @contextmanager
    def _change(self) -> Generator[None]:
        """Within the block the attributes are those of the store; after it, the store is."""
        with self._store.change() as state:
            if not state.exists:
                raise StorageFailed("the budget of the run was removed while it ran")
            _load(self, state)
            own = state.reserved.get(self._holder, Spent())
            others = self._reserved = _sum(state.reserved) - own
            self._reserved += own
            for reserved, used in self._unsettled:
                super().release(reserved, used)
            yield
            state.spent = self.spent
            state.reserved[self._holder] = self._reserved - others
            if state.reserved[self._holder].calls <= 0:
                del state.reserved[self._holder]
        self._unsettled.clear()


def set_limits(store: BudgetStore, limits: StoredBudget) -> None:
    """Set the limits. What was spent and raised before stays; ``limits.spent`` counts if nothing
    was. Raises ``StorageFailed``."""
    with store.change() as state:
        if not state.exists:
            state.spent = limits.spent
        state.max_cost = limits.max_cost
        state.max_total_tokens = limits.max_total_tokens
        state.max_calls = limits.max_calls
        state.pauses = limits.pauses


def settle_holder(store: BudgetStore, holder: str) -> None:
    """The holder's process has ended: what it has reserved counts as spent. Raises
    ``StorageFailed``."""
    with store.change() as state:
        state.spent += state.reserved.pop(holder, Spent())


def raise_stored(store: BudgetStore, more: Raise, key: str = "") -> None:
    """Raise the limits; with a ``key`` only once. Raises ``ConfigError``, ``StorageFailed``."""
    with store.change() as state:
        if key and key in state.raises:
            return
        budget = Budget()
        _load(budget, state)
        budget.raise_limits(more)
        state.raised += Spent(more.cost or 0.0, more.tokens or 0, more.calls or 0)
        if key:
            state.raises.append(key)


def read_stored(store: BudgetStore) -> Budget:
    """A copy: its limits, and what is spent. Raises ``StorageFailed``."""
    budget = Budget()
    with store.change() as state:
        _load(budget, state)
    return budget


def _load(budget: Budget, state: StoredBudget) -> None:
    raised = state.raised
    budget.max_cost = None if state.max_cost is None else state.max_cost + raised.cost
    tokens, calls = state.max_total_tokens, state.max_calls
    budget.max_total_tokens = None if tokens is None else tokens + raised.tokens
    budget.max_calls = None if calls is None else calls + raised.calls
    budget.pauses = state.pauses
    budget.spent = state.spent


def _sum(reserved: dict[str, Spent]) -> Spent:
    total = Spent()
    for each in reserved.values():
        total += each
    return total
