"""``corral docs``: the documentation of the installed version, in the terminal and in a browser."""

from __future__ import annotations

import re
import shlex
import sys
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from corral._cli.command_types import examples, plain_option
from corral._cli.ui.spans import StyledText, shorten
from corral._cli.ui.terminal import answer_markdown, echo, echo_styled, size
from corral._docs import pages
from corral.errors import ConfigError

SHOWN = 12
"""Matches of a search that are listed."""
PIPE_WIDTH = 150
"""Columns of their lines if stdout is no terminal."""
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    found = (page for page in pages.all_pages() if page.name.startswith(incomplete))
    return [CompletionItem(page.name, help=page.title) for page in found]


@click.command("docs", epilog=examples("corral docs policy", "corral docs --search rate limit"))
@click.argument("topic", nargs=-1, shell_complete=_complete)
@plain_option("--search WORDS", "List the sections with the most of these words.")
@plain_option("--open", "Open the site in a browser: all pages, with a search.")
def command(topic: tuple[str, ...], search: str | None, open: bool) -> None:
    """Show the documentation of this version.

    TOPIC is the name of a page, or the name or code of an error. Without it, the pages are listed.
    """
    if open:
        if topic or search is not None:
            raise ConfigError("--open shows all pages", hint="Leave TOPIC and --search out.")
        from corral._cli.view import require, serve_page

        require()
        if pages.site_folder() is None:
            raise ConfigError("this build of corral has no site", hint=pages.NO_SITE_HINT)
        serve_page(path="docs/")
    elif search is not None:
        _search(" ".join((search, *topic)))
    elif len(topic) > 1:
        words = " ".join(map(shlex.quote, topic))
        hint = f"To search: corral docs --search {words}."
        raise ConfigError("one TOPIC is shown at a time", hint=hint)
    elif topic:
        answer_markdown(_text_of(topic[0]))
    else:
        _list()


def _list() -> None:
    found = pages.all_pages()
    width = max(len(page.name) for page in found)
    for page in found:
        echo(f"{page.name.ljust(width)}  {page.title}")
    echo("\ncorral docs NAME shows a page or an error; corral docs --search WORDS finds sections.")


def _search(words: str) -> None:
    matches = pages.search(words.split(), pages.all_pages())
    if not matches:
        raise ConfigError(
            f"no section has one of these words: {words}",
            hint="Use other words; corral docs lists the pages.",
        )
    width = size(sys.stdout)[0] if sys.stdout.isatty() else PIPE_WIDTH
    for match in matches[:SHOWN]:
        without = f"  (without: {', '.join(match.missing)})" if match.missing else ""
        heading = StyledText(f"{match.page.name}: {match.heading}", "bold")
        echo_styled([heading, StyledText(without, "dim")], err=False)
        line = _LINK.sub(r"\1", match.line).strip("| ").removeprefix("- ")  # a table, a list
        echo(f"    {shorten(line, width - 4)}")
    if more := sum(not match.missing for match in matches[SHOWN:]):
        echo(f"… and {more} more sections with all of the words")


def _text_of(topic: str) -> str:
    from corral._docs.error_pages import error_page, find_error

    name = topic.removesuffix(".md").removeprefix("docs/")
    every = pages.all_pages()
    found = {page.name: page for page in every}
    by_last_part = {page.name.rpartition("/")[2]: page for page in every}
    if (page := found.get(name) or by_last_part.get(name)) is not None:
        return page.text
    if (error := find_error(name)) is not None:
        return error_page(error)
    similar = get_close_matches(name, found, n=3, cutoff=0.6)
    about = [match.page.name for match in pages.search([name], [*found.values()])]
    named = [*similar, *dict.fromkeys(about)][:3]
    hint = f"Pages about it: {', '.join(dict.fromkeys(named))}." if named else ""
    raise ConfigError(
        f"there is no page {topic!r}", hint=f"{hint} corral docs lists all pages.".strip()
    )
