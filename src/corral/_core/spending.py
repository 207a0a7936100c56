"""What may be spent on model calls, and what was spent.

``LIMITS`` is the only list of the limits that exist. The name of a limit is an option of a run and
an attribute of a graph. Its unit is a field of ``Spent`` and ``Raise``, and ``add_<unit>`` is the
attribute of an edge that raises it. A new limit is a row of the list, a field of each record here,
and a record in ``_option_definitions``: the functions, commands, files, HTTP bodies and MCP schemas
that have limits get it from there.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypedDict, cast

import msgspec
from msgspec.structs import astuple, replace

from corral.values import convert_to


def dollars(usd: float) -> str:
    """An amount of money, as users read it. What is not nothing is not shown as nothing."""
    if usd == 0:
        return "$0"
    return "<$0.0001" if 0 < usd < 0.0001 else f"${usd:.4f}"


class LimitKind(msgspec.Struct, frozen=True):
    unit: str
    number: type[float]
    """``int`` if there are no parts of a unit."""


LIMITS: Mapping[str, LimitKind] = {
    "max_cost": LimitKind("cost", float),
    "max_total_tokens": LimitKind("tokens", int),
    "max_calls": LimitKind("calls", int),
}


class LimitKwargs(TypedDict, total=False):
    """The limits as keywords, and as a dict: ``task={"max_cost": 0.5}``."""

    max_cost: float | None
    """The most that the model calls may cost."""
    max_total_tokens: int | None
    """The most tokens that the model calls may use."""
    max_calls: int | None
    """The most model calls."""


class LimitFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits as fields of a record. None: no limit."""

    max_cost: float | None = None
    max_total_tokens: int | None = None
    max_calls: int | None = None


class Spent(msgspec.Struct, frozen=True):
    """Money in USD, tokens and calls."""

    cost: float = 0.0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*map(operator.sub, astuple(self), astuple(other)))


class Amounts(TypedDict, total=False):
    """By how much limits are raised, as the arguments of a function; ``cost`` is its first."""

    tokens: int | None
    calls: int | None


class Raise(msgspec.Struct, frozen=True, omit_defaults=True):
    """By how much limits are raised."""

    cost: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def amounts(self) -> dict[str, float]:
        """The amounts that are set, by the name of the limit."""
        amounts = {name: getattr(self, kind.unit) for name, kind in LIMITS.items()}
        return {name: amount for name, amount in amounts.items() if amount is not None}

    @classmethod
    def of(cls, amounts: Mapping[str, float]) -> Raise:
        """From amounts by the name of the limit."""
        values = {LIMITS[name].unit: LIMITS[name].number(n) for name, n in amounts.items()}
        return convert_to(values, cls)

    def as_spent(self) -> Spent:
        return Spent(*(amount or 0 for amount in astuple(self)))


class BudgetLimits(LimitFields, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a budget."""

    pauses: bool = False
    """Whether model calls wait at a limit, instead of being refused."""

    @property
    def exist(self) -> bool:
        return any(getattr(self, name) is not None for name in LIMITS)

    def as_dict(self) -> dict[str, Any]:
        """The limits that are set, by their names."""
        limits = {name: getattr(self, name) for name in LIMITS}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def raised(self, by: Spent) -> BudgetLimits:
        limits = {
            name: limit + getattr(by, LIMITS[name].unit) for name, limit in self.as_dict().items()
        }
        return replace(self, **limits)


class BudgetState(LimitFields, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a budget, and what is spent: US dollars, tokens and model calls."""

    cost: float = 0.0
    tokens: int = 0
    calls: int = 0
    is_paused: bool = False
    """A call waits until a limit is raised."""


def pop_limits(options: LimitKwargs) -> BudgetLimits:
    """Remove the limits from options of a run; returns them."""
    values = cast("dict[str, object]", options)
    return convert_to({name: values.pop(name, None) for name in LIMITS}, BudgetLimits)
