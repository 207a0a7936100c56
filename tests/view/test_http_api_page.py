"""The page docs/http-api.md describes the operations as they are."""

from __future__ import annotations

from pathlib import Path

from support.goldens import check_golden
from support.http_api_page import http_api_page

from corral._view.server import ENDPOINTS

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"


def test_the_page_of_the_http_api_is_up_to_date() -> None:
    check_golden(PAGE, http_api_page(ENDPOINTS))


def test_every_operation_has_a_unique_name_and_a_text() -> None:
    names = [each.name for each in ENDPOINTS]
    assert len({*names}) == len(names)
    assert all(each.text.endswith(".") for each in ENDPOINTS)
