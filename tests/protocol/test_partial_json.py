"""Incomplete JSON is decoded as far as possible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._protocol.partial_json import NO_VALUE, PartialJson
from corral.values import Json

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
DOCUMENTS = st.lists(VALUES, max_size=4) | st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def values(pieces: Sequence[str]) -> list[Any]:
    """What is read after each piece."""
    partial = PartialJson()
    read: list[Any] = []
    for piece in pieces:
        partial.feed(piece)
        read.append(partial.value())
    return read


def grew(before: Json, after: Json) -> bool:
    """Whether nothing that was read before is gone or other."""
    if isinstance(before, str):
        return isinstance(after, str) and after.startswith(before)
    if isinstance(before, list):
        if not isinstance(after, list) or len(after) < len(before):
            return False
        return all(grew(a, b) for a, b in zip(before, after, strict=False))
    if isinstance(before, dict):
        if not isinstance(after, dict):
            return False
        return all(key in after and grew(held, after[key]) for key, held in before.items())
    return before == after and type(before) is type(after)


@pytest.mark.deep
@no_deadline
@given(document=DOCUMENTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
@example(document=["\U0001f389 \ud7ff"], ascii_only=True, indent=None)
@example(document={"a": "\\\U0001f389", "b": '"\\'}, ascii_only=True, indent=None)
def test_character_by_character_a_value_only_grows_up_to_the_complete_value(
    document: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    read = [value for value in values(text) if value is not NO_VALUE]
    assert read[-1] == json.loads(text)
    for before, after in pairwise(read):
        assert grew(before, after), (before, after)


@no_deadline
@given(document=DOCUMENTS, ascii_only=st.booleans())
def test_once_there_is_a_value_there_always_is_one(document: Any, ascii_only: bool) -> None:
    read = values(json.dumps(document, ensure_ascii=ascii_only))
    first = next(n for n, value in enumerate(read) if value is not NO_VALUE)
    assert first == 0
    assert NO_VALUE not in read


@no_deadline
@given(document=DOCUMENTS, cuts=st.lists(st.integers(0, 80)))
def test_the_final_value_does_not_depend_on_the_cuts(document: Any, cuts: list[int]) -> None:
    text = json.dumps(document)
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
    assert values([text[a:b] for a, b in pairwise(edges)])[-1] == json.loads(text)


@no_deadline
@given(pieces=st.lists(st.text(alphabet='{}[]",:\\u0dD8a1 \n', max_size=8) | st.text(max_size=4)))
def test_garbage_never_raises(pieces: list[str]) -> None:
    values(pieces)


SO_FAR: list[tuple[str, Any]] = [
    ("", NO_VALUE),
    ("no JSON yet", NO_VALUE),
    ("{", {}),
    ('{"a', {}),
    ('{"a"', {}),
    ('{"a":', {}),
    ('{"a": 1', {}),
    ('{"a": 1,', {"a": 1}),
    ('{"a": tru', {}),
    ('{"a": "hel', {"a": "hel"}),
    ('{"a": "x\\', {"a": "x"}),
    ('{"a": "x\\u00', {"a": "x"}),
    ('{"a": "x\\u00e9', {"a": "xé"}),
    ('{"a": "x\\ud83c', {"a": "x"}),
    ('{"a": "x\\ud83c\\udf8', {"a": "x"}),
    ('{"a": "x\\ud83c\\udf89', {"a": "x🎉"}),
    ('{"a": "x\\\\ud83c', {"a": "x\\ud83c"}),
    ('{"a": "two\nlines', {"a": "two\nlines"}),
    ('{"a": {"b": [1, 2', {"a": {"b": [1]}}),
    ('{"a": {}, "b', {"a": {}}),
    ("[[], [", [[], []]),
    ('Here it is:\n```json\n{"a": 1}\n``` and so on {', {"a": 1}),
]


@pytest.mark.parametrize(("text", "value"), SO_FAR)
def test_what_can_be_read_so_far(text: str, value: Any) -> None:
    assert values([text])[-1] == value
    if text:
        assert values(text)[-1] == value


def test_the_text_is_read_once_however_many_pieces_it_has() -> None:
    partial = PartialJson()
    gone_through = 0

    class Piece(str):
        """Tells how often it is measured or read."""

        __slots__ = ()

        def __len__(self) -> int:
            nonlocal gone_through
            gone_through += 1
            return super().__len__()

    partial.feed('["')
    for _ in range(500):
        partial.feed(Piece("x"))
    assert partial.value() == ["x" * 500]
    assert gone_through <= 5 * 500


def test_ten_thousand_brackets_are_rejected_without_a_crash() -> None:
    assert values(["[" * 100_000]) == [NO_VALUE]
