"""Slugs: names of ASCII letters and digits from any text."""

from __future__ import annotations

import pytest

from corral.slug import slug


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my run 2", "my-run-2"),
        ("../../etc/passwd", "etc-passwd"),
        ("a" * 99, "a" * 10),
        ("123456789 more", "123456789"),
        ("größe", "gr--e"),
        ("***", "run"),
        ("", "run"),
    ],
)
def test_a_slug_has_only_letters_digits_and_hyphens(text: str, name: str) -> None:
    assert slug(text, limit=10, default="run") == name


def test_allowed_characters_stay_and_dots_at_the_ends_go() -> None:
    assert slug(".hidden file.txt.", limit=30, allowed="._-", fill="_") == "hidden_file.txt"
