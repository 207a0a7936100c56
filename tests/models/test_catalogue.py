"""The catalogue of models: entries, aliases and prices."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import date
from typing import Any

import pytest

from corral._models import catalogue, registry
from corral._models.catalogue import Catalogue, CatalogueEntry, Prices, Tier
from corral.errors import ConfigError
from corral.values import Cost, Usage

TIERED = CatalogueEntry(
    id="x:pro",
    aliases=("x:best",),
    prices=Prices(input=1, output=10, cache_read=0.1, cache_write=1.25),
    tiers=(
        Tier(above=1_000, input=2, output=20, cache_read=0.2, cache_write=2.5),
        Tier(above=2_000, input=4, output=40),
    ),
)
KNOWN = Catalogue(
    [TIERED, CatalogueEntry(id="x:plain", window=10)], date(2026, 1, 2), {"x-too": "x"}
)


def used(**counts: int) -> Usage:
    return Usage(**counts, coverage="complete")


def usd(catalogue: Catalogue, model: str, **counts: int) -> float | None:
    return catalogue.cost(model, used(**counts)).usd


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("gemini:gemini-2.5-flash", "gemini:gemini-2.5-flash"),
        ("gemini:2.5-flash", "gemini:gemini-2.5-flash"),
        ("Gemini:models/gemini-2.5-flash", "gemini:gemini-2.5-flash"),
        (" gemini : gemini-2.5-flash ", "gemini:gemini-2.5-flash"),
        ("gemini:gemini-2.5-flash-001", "gemini:gemini-2.5-flash"),
        ("gemini:gemini-2.5-flash-preview-09-2025", "gemini:gemini-2.5-flash"),
        ("gemini:gemini-2.5-flash-lite-preview-09-2025", "gemini:gemini-2.5-flash-lite"),
        ("anthropic:claude-sonnet-4-5-20250929", "anthropic:claude-sonnet-4-5"),
        ("anthropic:sonnet-4.5", "anthropic:claude-sonnet-4-5"),
        ("openai:gpt-5-2025-08-07", "openai:gpt-5"),
        ("openai:gpt-5.6", "openai:gpt-5.6-sol"),
        ("openai-chat:gpt-5", "openai:gpt-5"),
    ],
)
def test_a_model_is_found_by_id_alias_and_snapshot(asked: str, found: str) -> None:
    entry = catalogue.lookup(asked)
    assert entry is not None
    assert entry.id == found


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "gemini",
        "gemini:",
        "gemini-2.5-flash",  # whose?
        "openrouter:gemini-2.5-flash",  # somebody else's price
        "gemini:gemini-2.5-flash-preview-04-17",  # had prices of its own
        "gemini:gemini-2.5-flash-image",
        "gemini:gemini-2.5-flash-native-audio-preview-09-2025",
        "gemini:gemini-2.5",
        "gemini:gemini-flash-latest",
        "openai:gpt-5-codex",
        "openai:gpt-5-pro",
        "openai:gpt-5-",
        "anthropic:claude-sonnet-4",
        "anthropic:claude-sonnet-4-5-2025",
    ],
)
def test_a_model_with_a_similar_name_is_not_taken_for_the_model(asked: str) -> None:
    assert catalogue.lookup(asked) is None


def test_the_shipped_catalogue_is_complete_and_plausible() -> None:
    entries = list(catalogue.all_entries())
    assert len(entries) > 30
    assert catalogue.shipped().checked
    for entry in entries:
        assert entry.checked == catalogue.shipped().checked, entry.id
        assert entry.abilities, entry.id
        assert (entry.window or math.inf) >= (entry.output_limit or 0), entry.id
        limits = [tier.above for tier in entry.tiers]
        assert limits == sorted(set(limits)), entry.id
        assert entry.prices or not entry.tiers, entry.id
        for prices in filter(None, (entry.prices, *entry.tiers)):
            assert 0 < prices.input < prices.output, entry.id
            assert (prices.cache_read or 0) < prices.input, entry.id
            assert prices.cache_write is None or prices.cache_write > prices.input, entry.id


def test_every_vendor_of_the_catalogue_is_known() -> None:
    names = {provider.name for provider in registry.all_providers()}
    assert {entry.id.partition(":")[0] for entry in catalogue.all_entries()} <= names


def test_each_kind_of_token_has_its_price_and_the_cached_are_part_of_the_input() -> None:
    complete = usd(KNOWN, "x:pro", input=1_000, output=100, cache_read=600, cache_write=100)
    assert complete == pytest.approx((300 * 1 + 600 * 0.1 + 100 * 1.25 + 100 * 10) / 1e6)


def test_reasoning_is_part_of_the_output_and_not_paid_twice() -> None:
    thought = usd(KNOWN, "x:pro", input=10, output=100, reasoning=90)
    assert thought == usd(KNOWN, "x:pro", input=10, output=100)


@pytest.mark.parametrize(("tokens", "price"), [(1_000, 1), (1_001, 2), (2_000, 2), (2_001, 4)])
def test_a_tier_applies_to_the_complete_request_above_its_input_limit(
    tokens: int, price: int
) -> None:
    paid = usd(KNOWN, "x:pro", input=tokens, output=10)
    assert paid == pytest.approx((tokens * price + 10 * price * 10) / 1e6)


def test_the_cached_tokens_count_towards_the_tier() -> None:
    paid = usd(KNOWN, "x:pro", input=1_500, output=0, cache_read=1_400)
    assert paid == pytest.approx((100 * 2 + 1_400 * 0.2) / 1e6)


def test_a_computed_cost_is_marked_as_computed() -> None:
    assert catalogue.cost("gemini:gemini-2.5-pro", used(input=200_000, output=0)) == Cost(
        usd=0.25, source="computed"
    )
    assert catalogue.cost("gemini:gemini-2.5-pro", used(input=200_001, output=0)).usd == (
        pytest.approx(0.5000025)
    )


@pytest.mark.parametrize(
    ("model", "usage"),
    [
        ("x:unheard-of", used(input=1, output=1)),
        ("x:plain", used(input=1, output=1)),
        ("x:pro", Usage()),
        ("x:pro", Usage(input=1, output=1)),
        ("x:pro", Usage(input=1, output=1, coverage="partial")),
        ("x:pro", used(input=1)),
        ("x:pro", used(output=1)),
    ],
)
def test_a_cost_is_unknown_if_a_price_or_a_count_is_missing(model: str, usage: Usage) -> None:
    assert KNOWN.cost(model, usage) == Cost()


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (used(input=1, output=1, cache_read=2), 10.2e-6),  # more cached than sent
        (used(input=3_000, output=1, cache_read=1_000), 0.01204),  # no price for the cache
        (used(input=3_000, output=1, cache_write=1_000), 0.01204),
    ],
)
def test_tokens_of_a_cache_without_a_price_count_as_other_input(usage: Usage, usd: float) -> None:
    found = KNOWN.cost("x:pro", usage)
    assert found.usd == pytest.approx(usd)
    assert found.source == "estimated"


def test_zero_tokens_have_a_known_cost_of_zero() -> None:
    assert KNOWN.cost("x:pro", used(input=0, output=0)) == Cost(usd=0, source="computed")


@pytest.mark.parametrize(
    ("asked", "answered", "price"),
    [
        ("x:pro", "pro", 1),
        ("x:pro", "models/pro", 1),
        ("x:pro", "pro-0709", 1),
        ("x:pro", "pro-2026-01-01", 1),
        ("x:best", "pro-0709", 1),
        ("x:best", "best", 1),
        ("x:whatever-latest", "pro", 1),
        ("x:pro", "", 1),
        ("x:whatever", "somebody-else", None),
    ],
)
def test_the_model_that_answered_decides_the_price(
    asked: str, answered: str, price: int | None
) -> None:
    paid = KNOWN.cost(asked, used(input=1_000, output=0), answered)
    assert paid.usd == (None if price is None else pytest.approx(price / 1e3))
    assert paid.source == ("unknown" if price is None else "computed")


@pytest.mark.parametrize("answered", ["plain", "pro-mini", "pro-1", "somebody-else"])
def test_a_model_without_a_price_that_answered_costs_as_much_as_the_one_that_was_asked(
    answered: str,
) -> None:
    paid = KNOWN.cost("x:pro", used(input=1_000, output=0), answered)
    assert paid.usd == pytest.approx(1e-3)
    assert paid.source == "estimated"


def test_own_entries_are_merged_over_shipped_ones_field_by_field() -> None:
    own = KNOWN.merged(
        {
            "checked": date(2026, 5, 1),
            "models": {"x:plain": {"output_limit": 5}, "y:new": {"window": 7}},
        }
    )
    plain, new = own.lookup("x:plain"), own.lookup("y:new")
    assert plain == CatalogueEntry(
        id="x:plain", window=10, output_limit=5, checked=date(2026, 5, 1)
    )
    assert new == CatalogueEntry(id="y:new", window=7, checked=date(2026, 5, 1))
    assert own.lookup("x-too:pro") == KNOWN.lookup("x:pro") == TIERED
    assert [entry.id for entry in KNOWN.entries()] == ["x:pro", "x:plain"]
    assert KNOWN.lookup("x:plain") == CatalogueEntry(id="x:plain", window=10)


def test_own_prices_replace_all_prices_of_that_model() -> None:
    own = KNOWN.merged({"models": {"x:best": {"prices": {"input": 0, "output": 1}}}})
    assert usd(own, "x:pro", input=5_000, output=1_000_000) == 1
    assert own.cost("x:pro", used(input=10, output=0, cache_read=5)) == Cost(0, "estimated")


def bad(**fields: Any) -> dict[str, Any]:
    return {"models": {"x:pro": fields}}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (bad(prices={"input": -1, "output": 1}), ["x:pro", "prices.input", ">= 0"]),
        (
            bad(prices={"input": 1, "output": math.nan}),
            ["x:pro", "prices.output must be finite, got: nan"],
        ),
        (
            bad(prices={"input": math.inf, "output": 1}),
            ["x:pro", "prices.input must be finite, got: inf"],
        ),
        (bad(prices={"input": 1}), ["x:pro", "`output`", "prices"]),
        (bad(prices={"input": "1", "output": 1}), ["x:pro", "prices.input"]),
        (bad(prices={"input": True, "output": 1}), ["x:pro", "prices.input"]),
        (bad(prices={"input": 1, "output": 1, "ouput": 1}), ["x:pro", "`ouput`"]),
        (bad(tiers=[{"input": 1, "output": 1}]), ["x:pro", "`above`", "tiers[0]"]),
        (
            bad(tiers=[{"above": 1, "input": math.nan, "output": 1}]),
            ["x:pro", "tiers[0].input must be finite, got: nan"],
        ),
        (bad(window=0), ["x:pro", "window"]),
        (bad(windw=1), ["x:pro", "`windw`", "Known fields: aliases, window"]),
        (bad(abilities=["magic"]), ["x:pro", "magic"]),
        (bad(aliases=["x:plain"]), ["x:pro", "'x:plain' already names x:plain"]),
        ({"models": {"pro": {}}}, ["pro", "vendor:model"]),
        ({"models": {"x:pro": 3}}, ["models"]),
        ({"models": 3}, ["models"]),
        ({"modles": {}}, ["`modles`", "Known keys: checked"]),
    ],
)
def test_an_error_in_own_entries_names_model_and_field(
    table: dict[str, Any], says: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        KNOWN.merged(table, "mine.toml")
    assert all(text in str(caught.value) for text in ["mine.toml", *says]), str(caught.value)


def test_two_models_cannot_share_an_alias() -> None:
    with pytest.raises(ConfigError, match="already names"):
        Catalogue(
            [CatalogueEntry(id="x:a", aliases=("x:c",)), CatalogueEntry(id="x:b", aliases=("x:c",))]
        )


def test_the_catalogue_is_read_only_when_it_is_used() -> None:
    code = (
        "import sys, corral._models.catalogue as c; assert 'tomllib' not in sys.modules;"
        "c.all_entries()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
