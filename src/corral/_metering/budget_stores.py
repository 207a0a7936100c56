"""Where the state of a budget is: in memory, in a file, or in a row of a database
(``own_tables``).

What is reserved is recorded with its *holder*, the visit of a node. There are no heartbeats: a
process that dies leaves its reservations behind. They are counted as spent when the same visit is
run again, and when it has ended in any way (``settle_holder``). Until then they stay reserved, so
a crash never makes room for a call that would exceed the limit.

A holder that has made a call also has its *next call* set aside, of the same size, as far as there
is room: others cannot use it. So a branch that has worked can still report its result when other
branches have spent the rest. It is given back when the holder ends.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import asdict, astuple

from corral._core.spending import BudgetLimits, BudgetState, Raise, Spent
from corral._system import fs, paths
from corral.errors import ConfigError, StorageFailed
from corral.values import decode_as

_LARGEST = 1 << 24
"""Bytes of a store file."""
NOTHING = Spent()
_ROUNDING = 1e-9
"""What sums of costs may differ by."""


class StoredBudget(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of a store."""

    limits: BudgetLimits = BudgetLimits()
    """As they were at first."""
    raised: Spent = NOTHING
    """By how much the limits were raised while it ran."""
    raises: list[str] = []
    """Keys of the raises that were made: each is made once."""
    spent: Spent = NOTHING
    reserved: dict[str, Spent] = {}
    """For calls that are being made, by holder."""
    next_calls: dict[str, Spent] = {}
    """What is set aside for the next call of each holder."""
    waiting: dict[str, bool] = {}
    """Holders with a call that does not fit now, and whether it waits for a raise: not for others
    that may give something back."""

    def all_reserved(self, holder: str) -> Spent:
        """What ``holder`` cannot use: all but what is set aside for itself."""
        others = [amount for name, amount in self.next_calls.items() if name != holder]
        return sum((*self.reserved.values(), *others), start=NOTHING)

    def is_alone(self, holder: str) -> bool:
        """Whether no one else may give back something without a raise: no call is being made, and
        nothing is set aside for a holder that does not wait itself."""
        idle = {holder, *self.waiting}
        return not any(each.calls for each in self.reserved.values()) and idle.issuperset(
            self.next_calls
        )

    def is_paused(self, holder: str = "") -> bool:
        """Whether a call of ``holder``, or of any, waits until a limit is raised."""
        return self.waiting.get(holder, False) if holder else any(self.waiting.values())

    def as_state(self, holder: str = "") -> BudgetState:
        """How it is now, for one holder or for all."""
        limits = self.limits.raised(self.raised).as_dict()
        return BudgetState(**limits, **asdict(self.spent), is_paused=self.is_paused(holder))

    def reserve(self, holder: str, more: Spent) -> None:
        """``more`` may be negative: then it is released."""
        total = self.reserved.pop(holder, NOTHING) + more
        if max(astuple(total)) > _ROUNDING:
            self.reserved[holder] = total


class BudgetStore(Protocol):
    """Where the state of a budget is."""

    def change(self) -> AbstractContextManager[StoredBudget]:
        """The state, which no other process changes within the block. It is stored at the end of
        the block. Raises ``StorageFailed``."""
        ...


class MemoryBudgetStore:
    """A store for one process."""

    def __init__(self, state: StoredBudget) -> None:
        self._state = state

    @contextmanager
    def change(self) -> Generator[StoredBudget]:
        yield self._state


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
                if state.limits.exist and changed != data:
                    fs.write_atomically(self._path, changed, mode=0o600)
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageFailed(f"the budget in {self._path} cannot be used: {error}") from error

    def read(self) -> StoredBudget | None:
        """The content without a lock, for those who only show it; None if there is none."""
        data = fs.read_small(self._path, _LARGEST)
        try:
            return decode_as(data, StoredBudget) if data else None
        except msgspec.MsgspecError:
            return None

    def remove(self) -> None:
        for path in (self._path, self._path.with_name(self._path.name + ".lock")):
            fs.remove_file(path)


def set_limits(store: BudgetStore, limits: BudgetLimits, spent: Spent = NOTHING) -> None:
    """Set the limits. What was spent and raised before stays; ``spent`` counts if nothing was.
    Raises ``StorageFailed``."""
    with store.change() as state:
        if not state.limits.exist:
            state.spent = spent
        state.limits = limits


def settle_holder(store: BudgetStore, holder: str) -> None:
    """The holder's process has ended: what it has reserved counts as spent. Raises
    ``StorageFailed``."""
    with store.change() as state:
        state.spent += state.reserved.pop(holder, NOTHING)
        state.next_calls.pop(holder, None)
        state.waiting.pop(holder, None)


def raise_limits(store: BudgetStore, more: Raise, key: str = "") -> None:
    """Raise the limits, all of them or none; with a ``key`` only once. Raises ``ConfigError``,
    ``StorageFailed``."""
    amounts = more.amounts()
    if not amounts:
        raise ConfigError("no amount is given", hint="Give a cost, tokens or calls.")
    with store.change() as state:
        if key and key in state.raises:
            return
        for name, amount in amounts.items():
            if name not in state.limits.as_dict():
                raise ConfigError(f"the budget has no {name} that could be raised")
            if not 0 < amount < math.inf:
                raise ConfigError(f"a budget can only be raised, got: {amount:g}")
        state.raised += more.as_spent()
        state.waiting.clear()  # they try again
        if key:
            state.raises.append(key)
