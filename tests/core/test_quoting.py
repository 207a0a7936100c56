"""Strings of other languages."""

from __future__ import annotations

import json
import re
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from corral._core.quoting import json_pattern, json_string, toml_string

TEXTS = st.text(st.characters(codec="utf-8"))


@given(TEXTS)
def test_a_json_string_is_the_one_of_the_standard_library(text: str) -> None:
    assert json_string(text) == json.dumps(text, ensure_ascii=False)


@given(TEXTS)
def test_a_toml_string_is_read_back_unchanged(text: str) -> None:
    assert tomllib.loads(f"a = {toml_string(text)}")["a"] == text


@given(TEXTS)
def test_a_json_pattern_matches_its_text_and_nothing_else(text: str) -> None:
    pattern = json_pattern(text)
    assert re.fullmatch(pattern, json.dumps(text, ensure_ascii=False)[1:-1])
    assert not re.fullmatch(pattern, json.dumps(f"{text}x", ensure_ascii=False)[1:-1])


def test_a_lone_surrogate_is_replaced() -> None:
    assert json_string("a\udc80") == '"a\ufffd"'
