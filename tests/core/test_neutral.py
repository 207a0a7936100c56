"""Text of a reviewer in Markdown: shown as it is, and nothing of it means anything."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.review_checks import check_markdown, tokens_of

from corral._core.neutral import markdown_text

EMPTY = "\u200b"
PIECES = (
    *"\\`*_[](){}~|$<>&@#!%:;^+-=./\"' \n", "a", "B", "7", "é", "www.", "GH-3", "https://x.y", "::",
    "```", "---", "===", "1.", "2)", "{+", "[[", "&lt;", "<b>", "abc1234", "DEADBEEF", "f" * 40,
    "snake_case", "mailto:a@b.c", ":+1:", "![x](y)", "[x]: y", "~~", "$x$", "%{a}", "+++", ";;;",
)  # fmt: skip
COMMIT = re.compile(r"[0-9a-f]{7}", re.IGNORECASE)


def shown(written: str) -> str:
    """What a reader sees of it."""
    tokens = [token for token in tokens_of(written) if not token.children]
    allowed = {"paragraph_open", "paragraph_close", "inline", "text", "softbreak"}
    assert {token.type for token in tokens_of(written)} <= allowed
    return "".join("\n" if each.type != "text" else each.content for each in tokens)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("a\n-\n")
@example("\\\nb")
@example("- [ ] x")
@example("::include{file=x}")
def test_any_text_is_shown_as_it_is_and_means_nothing(text: str) -> None:
    written = markdown_text(text)
    check_markdown(written)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    assert shown(written).replace(EMPTY, "").split() == " ".join(lines).split()
    assert not COMMIT.search(shown(written)), "a commit"
    assert not re.search(r"[{\[][+\-\[{]", shown(written))


@pytest.mark.parametrize(
    "text",
    [
        "main...HEAD: no findings in 3 files (gemini-cli, claude-cli)",
        "a = b(c) - d + e / f; x != y -> z >= 1, 50% of R & D!",
        "The call of read_file in src/corral/review/neutral.py may fail.",
        "C:\\temp and \\d are plain, e.g. in line 12.",
        "severity high; #, @ and ~/x",
    ],
)
def test_what_has_no_meaning_stays_as_it_is(text: str) -> None:
    assert markdown_text(text).replace("\\~", "~") == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/merge", "\\/merge"),
        ("see #1 and @you", "see #&#8203;1 and @&#8203;you"),
        ("1. one", "1\\. one"),
        ("in abc1234 it was", "in abc123&#8203;4 it was"),
        ("https://x.y", "https:&#8203;//x.y"),
        ("<b> &amp; \\* **", "&lt;b> &amp;&#8203;amp; \\\\\\* \\*\\*"),
    ],
)
def test_what_would_mean_something_is_escaped(text: str, written: str) -> None:
    assert markdown_text(text) == written
