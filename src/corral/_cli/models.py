"""``corral models``: list the vendors and models, with their limits and prices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import click
import msgspec

from corral._cli.command_types import plain_option
from corral._cli.options import JSON, completing
from corral._cli.ui.tables import format_count, table
from corral._cli.ui.terminal import echo, echo_json
from corral._metering import prices
from corral._models import registry
from corral._models.catalogue import CatalogueEntry, Prices
from corral._models.spec import Provider
from corral.values import JsonObject, as_object

UNLISTED = "Not in the catalogue. The model can still be used."
OTHERS = "Other models can be used too."


class VendorRow(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a vendor; of variables only the names, never the values."""

    name: str
    title: str
    aliases: tuple[str, ...]
    wire: str
    key: str | None
    """The variable that has the key, if one is set."""
    key_variables: tuple[str, ...]
    key_optional: bool
    credentials: str | None
    base_url: str
    base_url_variables: tuple[str, ...]


@click.group("models")
def command() -> None:
    """List vendors and models, their limits and prices."""


@command.command("list")
@plain_option("--provider name NAME", "Only this vendor.")
@JSON
def list_models(name: str | None, as_json: bool) -> None:
    """List the vendors and the models of the catalogue.

    Shows for each vendor whether its key is set. Other models can be used too."""
    known = list(registry.all_providers()) if name is None else [registry.find_provider(name)]
    catalogue = prices.catalogue()
    vendors = [_vendor(provider) for provider in known]
    names = {provider.name for provider in known}
    entries = [entry for entry in catalogue.entries() if entry.id.partition(":")[0] in names]
    if as_json:
        found = {
            "checked": catalogue.checked,
            "vendors": vendors,
            "models": [_to_dict(entry) for entry in entries],
        }
        echo_json(msgspec.json.encode(found).decode())
        return
    rows = [(one.name, _key(one), one.base_url or "–") for one in vendors]
    echo(table(("vendor", "key", "base URL"), rows))
    if entries:
        head = ("model", "window", "output", "in", "out", "cached", "abilities")
        cells: list[tuple[str, ...]] = []
        for entry in entries:
            priced = entry.prices
            money = (priced.input, priced.output, priced.cache_read) if priced else (None,) * 3
            cells.append(
                (
                    entry.id,
                    format_count(entry.window),
                    format_count(entry.output_limit),
                    *map(_usd, money),
                    " ".join(entry.abilities),
                )
            )
        echo("\n" + table(head, cells))
        echo(f"\nIn USD per million tokens, as of {catalogue.checked}. {OTHERS}")


@command.command("show")
@click.argument("model", shell_complete=completing("models"))
@JSON
def show(model: str, as_json: bool) -> None:
    """Show everything known about one model, given as vendor:model."""
    provider, name = registry.split_model(model)
    entry = prices.catalogue().lookup(f"{provider.name}:{name}")
    full_name, vendor = f"{provider.name}:{name}", _vendor(provider)
    if as_json:
        shown = {
            "model": full_name,
            "listed": entry is not None,
            "vendor": vendor,
            **({"note": UNLISTED} if entry is None else _to_dict(entry)),
        }
        echo_json(msgspec.json.encode(shown))
        return
    echo(table(("", ""), list(_details(full_name, vendor, entry))).lstrip("\n"))


def _vendor(provider: Provider) -> VendorRow:
    return VendorRow(
        name=provider.name,
        title=provider.title,
        aliases=tuple(provider.aliases),
        wire=provider.wire.name,
        key=next((name for name in provider.key_env if os.environ.get(name)), None),
        key_variables=tuple(provider.key_env),
        key_optional=provider.key_optional,
        credentials=provider.credentials,
        base_url=_base_url(provider),
        base_url_variables=tuple(provider.base_url_env),
    )


def _base_url(provider: Provider) -> str:
    """The base URL in use, without the user name and password that it may contain."""
    given = (os.environ.get(name) for name in provider.base_url_env)
    url = next((url for url in given if url), provider.base_url)
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(invalid URL)"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _key(vendor: VendorRow) -> str:
    if vendor.key:
        return f"✓ {vendor.key}"
    if vendor.credentials:
        return f"by {vendor.credentials} credentials"
    if vendor.key_optional:
        return "not needed"
    return f"– {' or '.join(vendor.key_variables)}"


def _details(
    model: str, vendor: VendorRow, entry: CatalogueEntry | None
) -> Iterator[tuple[str, str]]:
    yield "model", model
    yield "vendor", vendor.title
    yield "key", _key(vendor)
    yield "base URL", vendor.base_url or "–"
    if entry is None:
        yield "note", UNLISTED
        return
    yield "listed as", entry.id
    yield "aliases", ", ".join(entry.aliases) or "–"
    yield "window", format_count(entry.window)
    yield "output limit", format_count(entry.output_limit)
    yield "abilities", ", ".join(entry.abilities) or "–"
    yield "knowledge", entry.knowledge or "–"
    yield "prices", _format_prices(entry.prices)
    for tier in entry.tiers:
        yield f"above {tier.above:,}", _format_prices(tier)
    yield "checked", str(entry.checked or "–")


def _format_prices(prices: Prices | None) -> str:
    if prices is None:
        return "not known"
    names = ("input", "output", "cache_read", "cache_write")
    known = {name: getattr(prices, name) for name in names}
    parts = (f"{name} {_usd(price)}" for name, price in known.items() if price is not None)
    return ", ".join(parts) + " USD per million tokens"


def _usd(price: float | None) -> str:
    if price is None:
        return "–"
    exact = f"{price:.6f}".rstrip("0")
    return exact if len(exact.partition(".")[2]) >= 2 else f"{price:.2f}"


def _to_dict(entry: CatalogueEntry) -> JsonObject:
    return as_object(msgspec.to_builtins(entry))
