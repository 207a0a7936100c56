"""Makes text of agents safe for a page: Markdown to HTML, and plain text.

The text is hostile input. HTML in it is shown as text, links lead only to http, https and mailto,
images are shown as links and are not loaded. Terminal sequences are removed. Characters that
reorder or hide text are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from corral._core.terminal_text import plain

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_TEXT = 20_000
"""Characters of a text that is rendered."""
TAGS = frozenset(
    (
        *("a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"),
        *("ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    )
)
"""Every tag that ``render`` writes."""
ATTRIBUTES = frozenset(["class", "href", "rel", "start", "target", "title"])
"""Every attribute that ``render`` writes."""
_LINKS = ("http://", "https://", "mailto:")
_ALIGNED = {"text-align:left": "left", "text-align:center": "center", "text-align:right": "right"}


def render(text: str, limit: int = MAX_TEXT) -> str:
    """The Markdown as HTML that contains only ``TAGS`` and ``ATTRIBUTES``."""
    parser = _parser()
    tokens = parser.parse(plain(text, limit))
    # Inline styles are not allowed on the page: the alignment of a table is a class.
    for token in tokens:
        style = token.attrs.pop("style", None)
        if style in _ALIGNED:
            token.attrs["class"] = _ALIGNED[str(style)]
    html: str = parser.renderer.render(tokens, parser.options, {})
    return html


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.common.utils import escapeHtml

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

    def is_allowed(url: str) -> bool:
        return url.strip().lower().startswith(_LINKS)

    def link(url: object) -> str:
        address = escapeHtml(str(url))
        return f'<a href="{address}" rel="noopener noreferrer nofollow" target="_blank">'

    def open_link(_self: object, tokens: Sequence[Token], index: int, *_: object) -> str:
        return link(tokens[index].attrs.get("href", ""))

    def image_as_link(_self: object, tokens: Sequence[Token], index: int, *_: object) -> str:
        token = tokens[index]
        return f"{link(token.attrs.get('src', ''))}{escapeHtml(token.content or 'image')}</a>"

    parser.validateLink = is_allowed  # type: ignore[method-assign]
    parser.add_render_rule("link_open", open_link)
    parser.add_render_rule("image", image_as_link)
    return parser
