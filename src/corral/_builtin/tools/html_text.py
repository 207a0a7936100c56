"""Convert HTML to text for a model: headings, lists, links, code; no scripts, no styles.

It runs as a separate program, started by its path: for some pages the standard library's parser
takes minutes, and it must not block the event loop.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urljoin

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object"})
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt"),
        *("fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5"),
        *("h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "summary"),
        *("table", "title", "tr", "ul"),
    )
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)} | {"title": "# "}


class _Page(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._out: list[str] = []
        self._silent: list[str] = []
        self._literal = 0
        self._link: tuple[int, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent:
            return
        if tag in _SILENT:
            self._silent.append(tag)
        elif tag == "br":
            self._out.append("\n")
        elif tag in _BLOCKS:
            self._out.append("\n" if tag in ("li", "tr") else "\n\n")
            self._out.append("- " if tag == "li" else _HEADINGS.get(tag, ""))
        elif tag in ("td", "th"):
            self._out.append(" | ")
        elif tag == "a":
            self._link = len(self._out), dict(attrs).get("href") or ""
        if tag == "pre":
            self._literal += 1
            self._out.append("```\n")

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            if tag == self._silent[-1]:
                self._silent.pop()
            return
        if tag == "pre" and self._literal:
            self._literal -= 1
            self._out.append("\n```")
        if tag == "a" and self._link is not None:
            (begin, target), self._link = self._link, None
            link_text = "".join(self._out[begin:]).strip()
            if link_text and target and not target.startswith(("#", "javascript:", "data:")):
                with suppress(ValueError):
                    url = urljoin(self._url, target)
                    self._out[begin:] = [f"[{link_text}]({url})"]
        if tag in _BLOCKS:
            self._out.append("\n" if tag in ("li", "tr") else "\n\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._out.append(data if self._literal else re.sub(r"\s+", " ", data))

    @property
    def text(self) -> str:
        lines = (line.rstrip() for line in "".join(self._out).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def html_to_text(html: str, url: str) -> str:
    """The text of a page. Links are resolved against ``url``."""
    page = _Page(url)
    page.feed(html)
    page.close()
    return page.text


if __name__ == "__main__":
    text = html_to_text(sys.stdin.buffer.read().decode("utf-8", "replace"), sys.argv[1])
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
