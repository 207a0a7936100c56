"""The reference of errors: a page for each class, as ``corral docs NAME`` shows it."""

from __future__ import annotations

from collections.abc import Iterator

from corral._docs.error_pages import error_page, first_line
from corral.errors import CorralError, classes_by_code


def pages() -> Iterator[tuple[str, str]]:
    """The name and the Markdown text of each page."""
    for found in _classes():
        yield found.__name__, error_page(found)


def summary() -> str:
    """One line for each class."""
    lines = (
        f"- [`{each.__name__}`]({each.__name__}.md) (`{each.code}`, exit {each.cli_exit}):"
        f" {first_line(each)}"
        for each in _classes()
    )
    return "# Errors\n\n" + "\n".join(lines) + "\n"


def _classes() -> list[type[CorralError]]:
    return sorted(classes_by_code().values(), key=lambda each: each.__name__)
