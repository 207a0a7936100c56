"""Amounts of money, as users read them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral._core.spending import dollars

SOURCE = Path(__file__).parents[2] / "src" / "corral"


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        (0.0, "$0"),
        (1e-12, "<$0.0001"),
        (9.539999999999999e-05, "<$0.0001"),
        (0.0001, "$0.0001"),
        (0.02, "$0.0200"),
        (12.5, "$12.5000"),
    ],
)
def test_an_amount_that_is_not_nothing_is_not_shown_as_nothing(usd: float, shown: str) -> None:
    assert dollars(usd) == shown


def test_amounts_are_formatted_in_one_place() -> None:
    own = re.compile(r"\$\{[^{}]*:[.,]\d?f\}")
    found = [str(path) for path in SOURCE.rglob("*.py") if own.search(path.read_text("utf-8"))]
    assert found == [str(SOURCE / "_core" / "spending.py")]
