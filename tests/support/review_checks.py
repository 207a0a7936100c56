"""Checks that a review in each format has no effect on what reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from markdown_it.token import Token

from corral._review.formats import FORMATS, MAX_MARKDOWN
from corral._review.result import Review

ACTIVE = {"image", "link_open", "html_inline", "html_block", "table_open"}
REFERENCE = re.compile(r"[@#!~%$&]\w|\bGH-\d|https?://|www\.\w|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""What GitHub and GitLab look for in the text that Markdown makes."""
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COMMAND = re.compile(r"::(error|warning|notice)( [^\n]*?)?::[^\n]*")


def tokens_of(text: str) -> list[Token]:
    found: list[Token] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        found += [token, *(token.children or ())]
    return found


def check_markdown(text: str) -> None:
    assert len(text) <= MAX_MARKDOWN
    assert not [line for line in text.split("\n") if line.startswith("/")], "a quick action"
    tokens = tokens_of(text)
    assert not {token.type for token in tokens} & ACTIVE
    for token in tokens:
        if token.type == "text":
            assert not REFERENCE.search(token.content), token.content


def check_log(text: str) -> None:
    assert not [line for line in text.split("\n") if line.lstrip().startswith("::")]
    assert not re.search(r"##\w*\[", text)


def check_formats(review: Review, secrets: Iterable[str] = ()) -> dict[str, str]:
    """Every format of the review, each of which has passed its checks."""
    written = {name: write(review) for name, write in FORMATS.items()}
    for name, text in written.items():
        assert not CONTROL.search(text), name
        text.encode()
        for secret in secrets:
            assert secret not in text, name
    check_markdown(written["markdown"])
    check_log(written["text"])
    for name in ("json", "sarif"):
        assert written[name].count("\n") == 1
        check_log(written[name])
    lines = written["github"].removesuffix("\n").split("\n")
    assert len(lines) >= len(review.findings)
    for line in lines:
        assert COMMAND.fullmatch(line), line
        assert not re.search(r"##\w*\[", line)
    assert sum(line.startswith("::notice::") for line in lines) + len(review.findings) == len(lines)
    sarif = json.loads(written["sarif"])
    for result in sarif["runs"][0]["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert re.fullmatch(r"[\w./%~-]+", place["artifactLocation"]["uri"])
        assert not re.search(r"(?<!\\)[\[\]]", result["message"]["text"])
    cases = ElementTree.fromstring(written["junit"])
    assert {case.tag for case in cases} <= {"testcase"}
    assert {child.tag for case in cases for child in case} <= {"failure", "error"}
    assert len(json.loads(written["json"])["findings"]) == len(review.findings)
    return written
