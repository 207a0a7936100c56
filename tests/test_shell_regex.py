"""Allow patterns as regular expressions accept a subset of what the patterns accept."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral.shell_patterns import covers
from corral.shell_regex import allow_regex

PATTERNS = ["git *", "git log *", "npm run test:*", "make -C * all", "g -m * *", "cd *"]
NESTED_REPETITION = r"\([^)]*[*+?{].*\)[*+?{]"
"""What the Gemini CLI refuses."""


def accepted(pattern: str, command: str) -> bool:
    regex = allow_regex(pattern)
    assert regex is not None
    text = json.dumps(command, ensure_ascii=False)
    return re.fullmatch(f'"{regex}"', text) is not None


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git status", "git status"),
        ("git *", "git"),
        ("git *", "git log --format=%H -- src/a.py"),
        ("git *", "git commit -m 'a; b | c (d)' -q"),
        ("git *", 'git commit -m "it\'s done" --author "a <b@c>"'),
        ("npm run test:*", "npm run test:unit"),
        ("make -C * all", "make -C sub/dir all"),
        ("ls | wc -l", "ls | wc -l"),
    ],
)
def test_plain_and_quoted_words_are_accepted(pattern: str, command: str) -> None:
    assert accepted(pattern, command)


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "g*t *",
        "a*",
        "eval *",
        "printf *",
        "test *",
        "time *",
        "'git' *",
        "a * * *",
        "git -m '*'",
    ],
)
def test_what_cannot_be_exact_has_no_expression(pattern: str) -> None:
    assert allow_regex(pattern) is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_there_is_no_nested_repetition(pattern: str) -> None:
    regex = allow_regex(pattern)
    assert regex is not None
    assert not re.search(NESTED_REPETITION, regex)


@no_deadline
@given(data=st.data(), pattern=st.sampled_from(PATTERNS))
def test_every_text_of_the_expression_is_accepted_by_the_pattern(
    data: st.DataObject, pattern: str
) -> None:
    regex = allow_regex(pattern)
    assert regex is not None
    text = data.draw(st.from_regex(f'"{regex}"', fullmatch=True))
    assert covers(pattern, json.loads(text))


SHELL_TEXT = st.text(alphabet="git ;&|$()`'\"\\<>\n={}!x*#~%", max_size=30)


@no_deadline
@given(command=SHELL_TEXT, pattern=st.sampled_from(PATTERNS))
def test_what_the_expression_accepts_the_pattern_accepts(command: str, pattern: str) -> None:
    line = pattern.replace("*", "").strip() + " " + command
    if accepted(pattern, line):
        assert covers(pattern, line)
