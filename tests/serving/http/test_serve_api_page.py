"""The page docs/serve-api.md describes the operations as they are."""

from __future__ import annotations

from pathlib import Path

from support.goldens import check_golden
from support.http_api_page import SERVE_HEAD, http_api_page

from corral._serving.http.application import openapi
from corral._serving.http.operations import ENDPOINTS

PAGE = Path(__file__).parents[3] / "docs" / "serve-api.md"


def test_the_page_of_the_api_is_up_to_date() -> None:
    check_golden(PAGE, http_api_page(ENDPOINTS, SERVE_HEAD))


def test_every_operation_has_a_unique_name_and_is_in_the_document() -> None:
    names = [each.name for each in ENDPOINTS]
    assert len({*names}) == len(names)
    paths = openapi()["paths"]
    assert isinstance(paths, dict)
    assert {each.path for each in ENDPOINTS} == set(paths)
