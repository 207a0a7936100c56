"""The pages of the documentation, as Markdown.

A wheel has them in this package (``tools/build_hook.py``); a checkout has them where people edit
them. The site, which ``make docs`` builds of them, is in a wheel that was built after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
    """A section that has all words of a search."""

    page: Page
    heading: str
    line: str
    """Its first line with one of the words."""
    score: int


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
    """The sections that have all of the words, best first: words in headings count most, and
    complete words more than parts of others."""
    wanted = [word.lower() for word in words if word.strip()]
    if not wanted:
        return []
    found = [
        match
        for page in pages
        for heading, text in page.sections()
        if (match := _match(wanted, page, heading, text)) is not None
    ]
    return sorted(found, key=lambda match: (-match.score, match.page.name))


def _match(wanted: Sequence[str], page: Page, heading: str, text: str) -> Match | None:
    about, head, body = f"{page.name} {page.title}".lower(), heading.lower(), text.lower()
    score = 0
    for word in wanted:
        in_body = body.count(word)
        if word not in about and word not in head and not in_body:
            return None
        words = len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", body))
        score += 40 * (word in head) + 20 * (word in about) + min(in_body, 5) + 2 * min(words, 5)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = next((each for each in lines if any(word in each.lower() for word in wanted)), "")
    return Match(page, heading, shown, score)


def site_folder() -> Path | None:
    """The folder of the site, if this installation has it."""
    for folder in (PACKAGE / "site", CHECKOUT / ".cache" / "site" / "site"):
        if fs.is_file(folder / "index.html"):
            return folder
    return None
