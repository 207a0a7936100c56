"""The pages of the documentation, as Markdown.

A wheel has them in this package (``tools/build_hook.py``); a checkout has them where people edit
them. The site, which ``make docs`` builds of them, is in a wheel that was built after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from corral._system import fs

PACKAGE = Path(str(files("corral._docs")))
CHECKOUT = Path(__file__).parents[3]
OTHER_PAGES = {"index": "README.md", "security": "SECURITY.md", "changelog": "CHANGELOG.md"}
"""Pages that a checkout has outside of docs/."""
NO_SITE_HINT = (
    "corral docs shows the pages in the terminal; make docs, in a checkout, builds the site."
)
_HEADING = re.compile(r"(#{1,6}) +(.*)")
_WORDS_OF_QUESTIONS = {
    *("a", "an", "and", "are", "can", "do", "does", "for", "how", "i", "in", "is", "it", "my"),
    *("of", "on", "or", "the", "to", "what", "when", "where", "which", "with"),
}
"""Words of a search that say nothing about its subject."""
_OFTEN = 5
"""How many times a word counts in the text of a section."""
_LONG = 2000
"""Characters of a section in which a word counts half."""


class Page(msgspec.Struct, frozen=True):
    name: str
    text: str

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ").strip()

    def sections(self) -> Iterator[tuple[str, str]]:
        """The headings, each with the text below it. Code that begins with ``#`` is no heading."""
        heading, lines, in_code = self.title, list[str](), False
        for line in self.text.splitlines()[1:]:
            in_code ^= line.startswith("```")
            match = None if in_code else _HEADING.match(line)
            if match is None:
                lines.append(line)
                continue
            yield heading, "\n".join(lines)
            heading, lines = match[2], []
        yield heading, "\n".join(lines)


class Match(msgspec.Struct, frozen=True):
    """A section that has words of a search."""

    page: Page
    heading: str
    line: str
    """Its first line with the most of the words."""
    missing: tuple[str, ...]
    """The words that it does not have."""
    score: float


def all_pages() -> list[Page]:
    """Every page, by name."""
    return [Page(name, fs.read_text(path)) for name, path in sorted(_paths().items())]


def _paths() -> dict[str, Path]:
    if fs.is_dir(PACKAGE / "pages"):
        return _pages_in(PACKAGE / "pages")
    others = {name: CHECKOUT / file for name, file in OTHER_PAGES.items()}
    found = {name: path for name, path in others.items() if fs.is_file(path)}
    return found | (_pages_in(CHECKOUT / "docs") if fs.is_dir(CHECKOUT / "docs") else {})


def _pages_in(folder: Path) -> dict[str, Path]:
    """The pages of a folder; those of a folder in it have its name in theirs."""
    found: dict[str, Path] = {}
    for name in fs.list_names(folder):
        if name.endswith(".md"):
            found[name.removesuffix(".md")] = folder / name
        elif fs.is_dir(folder / name):
            below = _pages_in(folder / name)
            found |= {f"{name}/{other}": path for other, path in below.items()}
    return found


def search(words: Sequence[str], pages: Sequence[Page]) -> list[Match]:
    """The sections that have one of the words or more, best first: those with the most words, of
    these the changelog last; a word in the heading counts most, then one in the page's title, then
    each in the text. A word is found by its beginning: ``budget`` finds ``Budgets``."""
    asked = dict.fromkeys(word.lower() for word in words if word.strip())
    wanted = [word for word in asked if word not in _WORDS_OF_QUESTIONS] or [*asked]
    patterns = {word: re.compile(rf"(?<![a-z0-9]){re.escape(_singular(word))}") for word in wanted}
    found = [
        match
        for page in pages
        for heading, text in page.sections()
        if len((match := _match(patterns, page, heading, text)).missing) < len(wanted)
    ]

    def order(match: Match) -> tuple[object, ...]:
        name = match.page.name
        return len(match.missing), name == "changelog", -match.score, name

    return sorted(found, key=order)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word


def _match(patterns: Mapping[str, re.Pattern[str]], page: Page, heading: str, text: str) -> Match:
    about, head, body = f"{page.name} {page.title}".lower(), heading.lower(), text.lower()
    score, missing = 0.0, list[str]()
    for word, pattern in patterns.items():
        in_about, in_head = bool(pattern.search(about)), bool(pattern.search(head))
        in_body = len(pattern.findall(body))
        # A long section has more words of every kind.
        often = min(in_body, _OFTEN) * 2 / (1 + len(body) / _LONG)
        score += 40 * in_head + 20 * in_about + often
        if not (in_about or in_head or in_body):
            missing.append(word)
    lines = (line.strip() for line in text.splitlines())
    shown = max(
        (line for line in lines if line and not line.startswith("```")),
        key=lambda line: sum(bool(each.search(line.lower())) for each in patterns.values()),
        default="",
    )
    return Match(page, heading, shown, tuple(missing), score)


def site_folder() -> Path | None:
    """The folder of the site, if this installation has it."""
    for folder in (PACKAGE / "site", CHECKOUT / ".cache" / "site" / "site"):
        if fs.is_file(folder / "index.html"):
            return folder
    return None
