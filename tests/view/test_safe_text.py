"""Text of agents on a page: no HTML, no scripts, nothing hidden."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral._core.terminal_text import plain
from corral._view.safe_text import ATTRIBUTES, TAGS, render

PIECES = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))",
    "![x](https://example.com/a.png)", "[a](https://example.com \"t\")", "<https://example.com>",
    "[x](data:text/html,<script>)", "[x]: javascript:alert(1)\n[x]", "|a|b|\n|:-|-:|\n|1|2|\n",
    "```html\n<b>\n```\n", "`<b>`", "&lt;b&gt;", "&#60;script&#62;", "# h\n", "> q\n", "- [ ] l\n",
    "[x](HTTPS://a \"<b>\")", "\\<b>", "<!-- -->", "<svg/onload=x>", "~~s~~", "**b**", "\n\n",
    "'\"",
    "[x](  javascript:a)", "[x](java\nscript:a)", "[x](&#106;avascript:a)", "1. a\n", "\x1b[31m",
    "[![i](https://a)](https://b)", "</p>", "\u202e", "\x00", "3) x\n", "    code\n",
]  # fmt: skip


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            if name == "href":
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert tag in TAGS, tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


def _links(html: str) -> list[str]:
    checker = _Checker()
    checker.feed(html)
    checker.close()
    return checker.links


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=12).map("".join))
def test_only_allowed_tags_attributes_and_links_are_written(text: str) -> None:
    for link in _links(render(text)):
        assert link.lower().startswith(("http://", "https://", "mailto:"))


def test_markdown_is_rendered_and_html_is_shown_as_text() -> None:
    html = render("# Title\n\n**bold** <script>x</script>\n\n|a|b|\n|:-|-:|\n|1|2|")
    assert "<h1>Title</h1>" in html
    assert "<strong>bold</strong> &lt;script&gt;x&lt;/script&gt;" in html
    assert '<td class="right">2</td>' in html
    assert "style" not in html


def test_links_open_elsewhere_and_images_are_not_loaded() -> None:
    html = render("[a](https://example.com) ![shot](https://example.com/a.png)")
    assert "<img" not in html
    assert html.count('rel="noopener noreferrer nofollow" target="_blank"') == 2
    assert ">shot</a>" in html
    assert _links(render("[a](javascript:alert(1)) [b](file:///etc/passwd)")) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
        ("a\u202eb", "a\\u202eb"),
        ("a\x00b\x07", "a\\x00b\\x07"),
        ("naïve 日本語 👩‍💻", "naïve 日本語 👩‍💻"),
    ],
)
def test_plain_text_has_no_terminal_sequences_and_hides_nothing(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_long_texts_are_cut() -> None:
    assert len(plain("x" * 100, 10)) == 10
    assert len(render("word " * 100_000)) < 25_000
