"""What a model gets of a long text: head and tail, within the limits."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from corral._builtin.tools.tool import ROOM, OutputLimits, count_lines, truncate

pieces = st.tuples(st.text("ab\n…é", min_size=1, max_size=20), st.integers(1, 60))
texts = st.lists(pieces, max_size=6).map(lambda found: "".join(text * n for text, n in found))
limits = st.builds(OutputLimits, st.integers(2 * ROOM + 2, 800), st.none() | st.integers(3, 40))
"""Most of the texts are over most of the limits."""


@given(texts, limits)
def test_a_text_within_the_limits_is_unchanged_and_others_stay_below_them(
    text: str, limit: OutputLimits
) -> None:
    shown = truncate(text, limit)
    assert len(shown) <= limit.chars
    assert limit.lines is None or count_lines(shown) <= limit.lines
    fits = len(text) <= limit.chars and (limit.lines is None or count_lines(text) <= limit.lines)
    assert (shown == text) == fits


@given(texts, limits)
def test_head_and_tail_stay_and_the_marker_says_what_is_left_out(
    text: str, limit: OutputLimits
) -> None:
    shown = truncate(text, limit)
    if shown == text:
        return
    marker = re.search(
        r"\n?\[… ([\d,]+) characters(?:, ([\d,]+) lines)? left out here …\]\n", shown
    )
    assert marker
    head, tail = shown[: marker.start()], shown[marker.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert head or text.startswith("\n")
    assert tail
    gone = int(marker[1].replace(",", ""))
    # The newline before the marker is the head's own, or the marker's.
    assert len(head) + len(tail) + gone in (len(text), len(text) - 1)


def test_a_text_of_one_long_line_keeps_both_its_ends() -> None:
    shown = truncate("a" * 600 + "z" * 600, OutputLimits(1_000, 10))
    assert shown.startswith("a" * 400)
    assert shown.endswith("z" * 400)


def test_many_short_lines_keep_the_first_and_the_last() -> None:
    text = "".join(f"{number}\n" for number in range(1_000))
    shown = truncate(text, OutputLimits(100_000, 11)).splitlines()
    assert shown[:5] == ["0", "1", "2", "3", "4"]
    assert shown[-5:] == ["995", "996", "997", "998", "999"]
    assert shown[5] == "[… 3,860 characters, 990 lines left out here …]"


@given(texts, st.integers(0, 2 * ROOM), st.none() | st.integers(0, 3))
def test_limits_too_small_for_a_marker_are_respected(
    text: str, chars: int, lines: int | None
) -> None:
    shown = truncate(text, OutputLimits(chars, lines))
    assert len(shown) <= chars
    assert lines is None or count_lines(shown) <= lines
