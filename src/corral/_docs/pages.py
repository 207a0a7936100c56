"""The pages of the documentation, as Markdown.

A wheel has them in this package (``tools/build_hook.py``); a checkout has them where people edit
them. The site, which ``make docs`` builds of them, is in a wheel that was built after it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from corral._system import fs

PACKAGE = Path(__file__).parent
CHECKOUT = Path(__file__).parents[3]
OTHER_PAGES = {"index": "README.md", "security": "SECURITY.md", "changelog": "CHANGELOG.md"}
"""Pages that a checkout has outside of docs/."""
NO_SITE_HINT = (
    "corral docs shows the pages in the terminal; make docs, in a checkout, builds the site."
)
_HEADING = re.compile(r"(#{1,6}) +(.*)")
_WORDS_OF_QUESTIONS = {
    *("a", "after", "an", "and", "are", "as", "can", "do", "does", "for", "from", "how", "i", "if"),
    *("in", "is", "it", "my", "of", "on", "or", "the", "to", "what", "when", "where", "which"),
    "with",
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
            match = _HEADING.match(line) if line.startswith("#") and not in_code else None
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
    text: str
    words: tuple[str, ...]
    """Those of the search that it has."""
    missing: tuple[str, ...]
    """Those that it does not have."""
    score: float

    @property
    def line(self) -> str:
        """Its first line with the most of the words."""
        lines = [line.strip() for line in self.text.splitlines()]
        return max(
            (line for line in lines if line and not line.startswith("```")),
            key=lambda line: sum(_count(word, line.lower()) > 0 for word in self.words),
            default="",
        )


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
    """The sections that have one of the words or more, best first; those of the changelog last. A
    word in the heading counts most, then one in the page's title, then each in the text; a word
    that few sections have counts more than a frequent one. A word is found by its beginning:
    ``budget`` finds ``Budgets``."""
    asked = dict.fromkeys(word.lower() for word in words if word.strip())
    wanted = [word for word in asked if word not in _WORDS_OF_QUESTIONS] or [*asked]
    sections = [(page, *section) for page in pages for section in page.sections()]
    found = [(*section, _find(wanted, *section)) for section in sections]
    having = Counter(word for *_, scores in found for word in scores)
    rarity = {word: math.log(1 + len(sections) / max(1, having[word])) for word in wanted}

    def match(page: Page, heading: str, text: str, scores: dict[str, float]) -> Match:
        # A section with a part of the words counts as much as that part.
        part = sum(rarity[word] for word in scores) / sum(rarity.values())
        score = part * sum(rarity[word] * scores[word] for word in scores)
        missing = tuple(word for word in wanted if word not in scores)
        return Match(page, heading, text, tuple(scores), missing, score)

    matches = [match(*section) for section in found if section[-1]]
    return sorted(matches, key=lambda one: (one.page.name == "changelog", -one.score))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word


def _find(wanted: Sequence[str], page: Page, heading: str, text: str) -> dict[str, float]:
    """The words that a section has, each with a number for where and how often."""
    about, head, body = f"{page.name} {page.title}".lower(), heading.lower(), text.lower()
    scores: dict[str, float] = {}
    for word in wanted:
        in_head, in_about, in_body = _count(word, head), _count(word, about), _count(word, body)
        if in_head or in_about or in_body:
            # A long section has more words of every kind.
            often = min(in_body, _OFTEN) * 2 / (1 + len(body) / _LONG)
            scores[word] = 40 * (in_head > 0) + 20 * (in_about > 0) + often
    return scores


def _count(word: str, text: str) -> int:
    """How many words of a text begin with this one, both in lower case; are this one if it has less
    than three letters."""
    begin = _singular(word)
    if begin not in text:  # much faster than the pattern
        return 0
    end = r"\b" if len(begin) < 3 else ""
    return len(re.findall(rf"(?<![a-z0-9]){re.escape(begin)}{end}", text))


def site_folder() -> Path | None:
    """The folder of the site, if this installation has it."""
    for folder in (PACKAGE / "site", CHECKOUT / ".cache" / "site" / "site"):
        if fs.is_file(folder / "index.html"):
            return folder
    return None
