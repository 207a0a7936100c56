"""Secrets in text that arrives in pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._system.environment import SecretRedactor, StreamRedactor

SECRETS = {"A": "abcabcabd", "B": "cabd-and-more", "C": "abcabcabdef", "D": "ddddabca"}


def shown(
    text: str, cuts: list[int], batch: int | None = None, secrets: dict[str, str] = SECRETS
) -> str:
    """What is shown of a text that arrives in pieces: one by one, or ``batch`` pieces at once."""
    redactor = StreamRedactor(SecretRedactor(secrets))
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    if batch is None:
        parts = [redactor.add(piece) for piece in pieces]
    else:
        starts = range(0, len(pieces), batch)
        parts = [part for at in starts for part in redactor.add_all(pieces[at : at + batch])]
    return "".join([*parts, redactor.finish()])


BATCHES = st.none() | st.integers(1, 10)


@given(
    st.lists(
        st.sampled_from(["abc", "abcabcab", "d", "cabd", "-and", "-more", "ef", "x", *"abcd"])
    ).map("".join),
    st.lists(st.integers(0, 200), max_size=60),
    BATCHES,
)
def test_no_way_of_cutting_shows_a_secret(text: str, cuts: list[int], batch: int | None) -> None:
    assert not any(secret in shown(text, cuts, batch) for secret in SECRETS.values())


@given(
    st.lists(st.sampled_from(["abcabcabd", "abcabcab", "x", "a", "b", "c"])).map("".join),
    st.lists(st.integers(0, 200), max_size=60),
    BATCHES,
)
def test_pieces_give_the_same_result_as_the_complete_text(
    text: str, cuts: list[int], batch: int | None
) -> None:
    secrets = {"A": "abcabcabd"}
    assert shown(text, cuts, batch, secrets) == SecretRedactor(secrets).clean_text(text)


def test_pieces_without_a_secret_are_shown_as_they_came() -> None:
    redactor = StreamRedactor(SecretRedactor({"A": "abcabcabd"}))
    assert redactor.add_all(["one", "", "abc", "abx", "yab", "cab"]) == ["one", "abc", "abx", "y"]
    assert redactor.add_all(["cat"]) == ["abcab", "cat"]


@pytest.mark.parametrize(
    ("text", "at_once"),
    [("nothing of it", "nothing of it"), ("then abca", "then "), ("abcabx", "abcabx")],
)
def test_only_a_possible_start_of_a_secret_is_held_back(text: str, at_once: str) -> None:
    assert StreamRedactor(SecretRedactor({"A": "abcabcabd"})).add(text) == at_once


def test_the_held_back_part_does_not_grow_with_the_text() -> None:
    pieces = StreamRedactor(SecretRedactor({"A": "a" * 50 + "b"}))
    for _ in range(1000):
        pieces.add("a")
        assert len(pieces.pending) <= 50
    assert pieces.finish() == "a" * 50


def test_without_secrets_everything_passes() -> None:
    assert StreamRedactor(SecretRedactor({})).add("any text") == "any text"
