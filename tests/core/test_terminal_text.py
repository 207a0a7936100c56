"""Untrusted text is made safe for a terminal."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._core.terminal_text import Cleaner, clean, json_line, one_line, visible

ANY = st.text(st.characters(codec=None), max_size=60)

OBEYED = {
    "clear the screen": "\x1b[2J\x1b[H",
    "write to the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "set the title": "\x1b]0;root@host\x1b\\",
    "a link": "\x1b]8;;http://evil.example\x1b\\safe\x1b]8;;\x1b\\",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d52;c;AAAA\x9c",
    "DCS": "\x90q\x9c",
    "carriage return": "rm -rf ~\recho hello   ",
    "backspace": "rm\b\bls",
    "form feed and vertical tab": "\f\v",
    "shift out": "\x0e",
    "delete": "\x7f",
    "bidi override": "echo \u202egro.live\u202c",
    "bidi isolate": "\u2066a\u2067b\u2068c\u2069",
    "line separators": "a\u2028b\u2029c\x85d",
    "zero width space": "r\u200bm",
    "word joiner and BOM": "\u2060\ufeff",
    "tags": "\U000e0041\U000e0042",
    "lone surrogate": "\ud800",
    "private use": "\ue000",
}
HIDDEN = {
    "joiner": "a\u200db",
    "no-break space": "a\u00a0b",
    "ideographic space": "a\u3000b",
    "Hangul filler": "a\u3164b",
    "Braille blank": "a\u2800b",
    "variation selector": "a\ufe0fb",
    "grapheme joiner": "a\u034fb",
    "Hangul choseong filler": "a\u115fb",
}


@pytest.mark.parametrize("text", OBEYED.values(), ids=OBEYED)
def test_terminal_control_sequences_are_escaped_visibly(text: str) -> None:
    for safe in (clean(text), visible(text)):
        assert "\\" in safe
        assert all(char.isprintable() for char in safe)


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_invisible_characters_are_escaped_in_permission_questions(text: str) -> None:
    assert "\\" in visible(text)
    assert visible(text).startswith("a")
    assert visible(text).endswith("b")


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "a\n\tb",
        "naïve Ünïcode",
        "漢字 ひらがな",
        "עברית",
        "می\u200cخواهم",
        "👩\u200d💻",
        "é",
    ],
)
def test_readable_text_of_any_language_is_unchanged(text: str) -> None:
    assert clean(text) == text


def test_combining_marks_do_not_cover_other_lines() -> None:
    flood = "a" + "\u0301" * 500
    for safe in (clean(flood), visible(flood)):
        assert sum(unicodedata.combining(char) > 0 for char in safe) <= 3
    cleaner = Cleaner()
    reported = "".join(cleaner.add(char) for char in flood)
    assert reported == clean(flood)


@given(ANY)
def test_no_control_sequence_remains(text: str) -> None:
    for safe in (clean(text), visible(text)):
        for char in safe:
            assert char in "\n\t\u200c\u200d" or char.isprintable() or char.isspace()
            assert (
                unicodedata.category(char) not in ("Cc", "Cs", "Co", "Zl", "Zp") or char in "\n\t"
            )
    assert one_line(text).isprintable()


@given(ANY)
def test_json_at_a_terminal_has_the_same_value(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    line = json.dumps({"a": text}, ensure_ascii=False)
    safe = json_line(line)
    assert json.loads(safe) == {"a": text}
    assert safe.isprintable()


def test_long_text_is_cleaned_in_one_pass() -> None:
    assert len(clean("\x1b" * 100_000)) == 4 * 100_000
    assert clean("x" * 1_000_000) == "x" * 1_000_000
    assert sys.getrecursionlimit() < 100_000
