"""Facts about models: context windows, limits, abilities and prices.

The catalogue only informs: a model that is not in it can be used, and unknown facts are None. The
figures are in ``catalogue.toml``; ``Catalogue.merged`` adds those of the user, already parsed::

    [models."gemini:gemini-2.5-flash"]
    prices = { input = 0.25, output = 2.00, cache_read = 0.02 }
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from math import isfinite
from typing import Annotated, Literal

import msgspec

from corral.errors import ConfigError
from corral.values import Cost, CostSource, Usage, convert_to, is_list, is_object

Ability = Literal["tools", "images", "audio", "documents", "reasoning", "json_schema", "caching"]

Price = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]

SNAPSHOT = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|\d{3}|preview-\d{2}-\d{4})$")
"""Suffixes of snapshots, which have the price of the model: ``-20250929``, ``-2025-08-07``,
``-001``, ``-preview-09-2025``. Not ``-preview-04-17``: those had other prices."""

DATED = re.compile(r"-\d{3,8}(-\d{2}){0,2}")
"""The suffix in a response: a request for ``grok-4`` is answered by ``grok-4-0709``."""
MAX_CACHED = 1000
"""Cached pairs of requested and responding model."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per million text tokens, without batch discounts."""

    input: Price
    output: Price
    cache_read: Price | None = None
    cache_write: Price | None = None
    """For the vendor's default cache lifetime."""


class Tier(Prices, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of the complete request if its input has more than ``above`` tokens."""

    above: Count


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. ``None`` means unknown."""

    id: str
    """``vendor:model``."""
    aliases: tuple[str, ...] = ()
    window: Count | None = None
    """Tokens of input and output together, or of input alone, as the vendor counts it."""
    output_limit: Count | None = None
    abilities: tuple[Ability, ...] = ()
    prices: Prices | None = None
    tiers: tuple[Tier, ...] = ()
    knowledge: str | None = None
    """Its knowledge cutoff, such as ``2025-01``."""
    note: str | None = None
    checked: date | None = None
    """When the figures were last compared with the vendor's."""

    def prices_for(self, tokens: int) -> Prices | None:
        """The prices of a request with this many input tokens; those of the lowest tier if there
        are no others."""
        if not self.tiers:
            return self.prices
        tiers = sorted(self.tiers, key=lambda tier: tier.above)
        reached = [tier for tier in tiers if tokens > tier.above]
        return reached[-1] if reached else self.prices or tiers[0]

    @property
    def has_prices(self) -> bool:
        return self.prices is not None or bool(self.tiers)


class Catalogue:
    """Entries by id and alias. Immutable: ``merged`` makes another one."""

    def __init__(
        self,
        entries: Iterable[CatalogueEntry],
        checked: date | None = None,
        same: Mapping[str, str] | None = None,
    ) -> None:
        self.checked = checked
        self._same = dict(same or {})
        self._entries = {entry.id: entry for entry in entries}
        self._names = {name: name for name in self._entries}
        self._billed_cache: dict[tuple[str, str | None], CatalogueEntry | None] = {}
        for entry in self._entries.values():
            for alias in entry.aliases:
                other = self._names.setdefault(alias, entry.id)
                if other != entry.id or alias in self._entries:
                    raise ConfigError(f"{entry.id}: {alias!r} already names {other}")

    def entries(self) -> Iterator[CatalogueEntry]:
        return iter(self._entries.values())

    def lookup(self, model_id: str) -> CatalogueEntry | None:
        """The entry of an id, an alias, or a dated snapshot of either."""
        vendor, colon, name = model_id.strip().partition(":")
        name = name.strip().removeprefix("models/")
        if not colon or not name:
            return None
        vendor = vendor.strip().lower()
        full_name = f"{self._same.get(vendor, vendor)}:{name}"
        found = self._names.get(full_name) or self._names.get(SNAPSHOT.sub("", full_name))
        return self._entries[found] if found else None

    def unaliased(self, vendor: str, name: str) -> str:
        """The vendor's name of a model that may be given by an alias."""
        found = self._names.get(f"{self._same.get(vendor, vendor)}:{name}")
        return found.partition(":")[2] if found else name

    def cost(self, model_id: str, usage: Usage, answered_by: str | None = None) -> Cost:
        """The cost of *one* request: tiers apply per request, so a sum would be priced wrong.

        ``answered_by`` is the model named in the response; it decides the price. The cost is an
        estimate if the list says less than the response: the model that answered is not listed
        (the price is that of the one that was asked), or tokens of a cache have no price (they
        count as other input). It is unknown if neither model has a price, or a count is missing.
        """
        known, asked = self._billed_cache, (model_id, answered_by)
        if asked not in known:  # to find it takes as long as reading the response
            if len(known) >= MAX_CACHED:
                known.clear()
            known[asked] = self._find_billed_entry(model_id, answered_by)
        entry = known[asked]
        used, output = usage.input, usage.output
        if usage.coverage != "complete" or used is None or output is None:
            return Cost()
        read, written = usage.cache_read or 0, usage.cache_write or 0
        source: CostSource = "computed"
        if entry is None or not entry.has_prices:
            entry, source = self.lookup(model_id), "estimated"
        if used < read + written:
            used, source = read + written, "estimated"
        prices = None if entry is None else entry.prices_for(used)
        if prices is None:
            return Cost()
        plain, read_price, write_price = prices.input, prices.cache_read, prices.cache_write
        if (read and read_price is None) or (written and write_price is None):
            source = "estimated"
        millions = (used - read - written) * plain + output * prices.output
        millions += read * (plain if read_price is None else read_price)
        millions += written * (plain if write_price is None else write_price)
        return Cost(usd=millions / 1_000_000, source=source)

    def merged(self, table: Mapping[str, object], source: str = "models.toml") -> Catalogue:
        """A catalogue with the user's entries added, field by field; prices replace all prices.

        Raises ``ConfigError`` that names the model and the field.
        """
        own = _file(table, source)
        entries = dict(self._entries)
        for name, fields in own.models.items():
            known = self._entries.get(self._names.get(name, name))
            before: dict[str, object] = msgspec.to_builtins(known) if known else {"id": name}
            if "prices" in fields and "tiers" not in fields:
                before.pop("tiers", None)  # they belong to the replaced prices
            merged = {**before, "checked": own.checked, **fields}
            entry = _entry(merged, f"{source}: {name}")
            entries[entry.id] = entry
        try:
            return Catalogue(entries.values(), self.checked, {**self._same, **own.same})
        except ConfigError as error:
            raise ConfigError(f"{source}: {error.message}") from error

    def _find_billed_entry(self, model_id: str, answered_by: str | None) -> CatalogueEntry | None:
        asked = self.lookup(model_id)
        if not answered_by:
            return asked
        vendor, _, name = model_id.strip().partition(":")
        answered = answered_by.strip().removeprefix("models/")
        found = self.lookup(f"{vendor}:{answered}")
        if found is not None or asked is None:
            return found
        for called in (name.strip(), asked.id.partition(":")[2]):
            rest = answered.removeprefix(called)
            if not rest or (rest != answered and DATED.fullmatch(rest)):
                return asked
        return None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, dict[str, object]] = {}
    checked: date | None = None
    same: dict[str, str] = {}
    """Vendor → the vendor whose models it sells at the same prices."""


def _file(table: Mapping[str, object], source: str) -> _File:
    try:
        return convert_to(table, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{source}: {error}", hint='Known keys: checked, same and [models."vendor:model"].'
        ) from error


def _entry(fields: Mapping[str, object], where: str) -> CatalogueEntry:
    vendor, _, name = str(fields["id"]).partition(":")
    if not vendor or not name:
        raise ConfigError(f"{where}: the name of a model must be vendor:model")
    _refuse_infinite(fields, where, "")
    try:
        return convert_to(fields, CatalogueEntry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", hint=f"Known fields: {_FIELDS}.") from error


_FIELDS = ", ".join(
    name for name in CatalogueEntry.__struct_fields__ if name not in ("id", "checked")
)


def _refuse_infinite(value: object, where: str, path: str) -> None:
    """Reject ``nan`` and ``inf``, which TOML allows and no range check finds."""
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{where}: {path.lstrip('.')} must be finite, got: {value}")
    if is_object(value):
        for key, inner in value.items():
            _refuse_infinite(inner, where, f"{path}.{key}")
    elif is_list(value):
        for number, inner in enumerate(value):
            _refuse_infinite(inner, where, f"{path}[{number}]")


@cache
def shipped() -> Catalogue:
    """The catalogue that is part of corral. It is read at the first call."""
    import tomllib
    from pkgutil import get_data  # importlib.resources takes longer to import than all the rest

    data = get_data("corral._models", "catalogue.toml") or b""
    table = _file(tomllib.loads(data.decode()), "catalogue.toml")
    return Catalogue(
        (
            _entry({"id": name, "checked": table.checked, **fields}, f"catalogue.toml: {name}")
            for name, fields in table.models.items()
        ),
        table.checked,
        table.same,
    )


def lookup(model_id: str) -> CatalogueEntry | None:
    """The shipped entry of an id, an alias, or a dated snapshot of either."""
    return shipped().lookup(model_id)


def all_entries() -> Iterator[CatalogueEntry]:
    return shipped().entries()


def cost(model_id: str, usage: Usage, answered_by: str | None = None) -> Cost:
    """The cost of one request at the shipped prices: see ``Catalogue.cost``."""
    return shipped().cost(model_id, usage, answered_by)
