"""Makes text from outside safe for a terminal.

A terminal obeys control sequences in whatever is printed: they can clear the screen, set its
title, write to the clipboard, or repaint a question so that another command is shown than the
one that runs. Bidirectional controls reorder what is read, invisible characters hide it.

Four functions, for four uses:

* ``clean``: answers, tool titles, names, errors. What a terminal would obey is escaped visibly
  (``\\x1b``). Readable text in any language stays as it is.
* ``plain``: texts on a page or in a document. Sequences are removed, then as ``clean``.
* ``visible``: what a person decides on. Escapes everything that ``clean`` does, and also
  whatever is invisible or only looks like a space.
* ``json_line``, ``json_bytes``: JSON that a person reads at a terminal. The same value, with such
  characters as ``\\u`` escapes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

MAX_MARKS = 3
"""Combining marks on one character. Real scripts need no more; a flood of them covers the lines
around."""

_JOINERS = "\u200c\u200d"
"""Invisible, and needed: Persian, Indic scripts and emoji are written with them."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Printable by their category, but nothing is to be seen."""
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_SAFE = re.compile(r"[\n\t\x20-\x7e]*")
_SAFE_JSON = re.compile(rb"[\n\x20-\x7e]*")
_UNSAFE_JSON = r"[^\n\x20-\x7e]"


def clean(text: str) -> str:
    """The text with escapes in place of what a terminal would obey. Line ends stay."""
    return Cleaner().add(text)


def visible(text: str) -> str:
    """The text with escapes in place of whatever a reader could not see as it is. Newlines and
    tabs stay."""
    return Cleaner(strict=True).add(text)


def plain(text: str, limit: int | None = None) -> str:
    """The text without terminal sequences, and with escapes in place of what hides or reorders."""
    if limit is not None and len(text) > limit:
        text = text[:limit]
    if "\x1b" in text or "\x9b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        # What a terminal would show of lines that a progress bar wrote over and over.
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return clean(text)


def one_line(text: str) -> str:
    """``visible``, with newlines and tabs escaped too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def json_line(text: str) -> str:
    """JSON with the same value, of which a terminal obeys nothing."""
    return re.sub(_UNSAFE_JSON, lambda found: _json_escape(found[0]), text)


def json_bytes(data: bytes) -> bytes:
    """``json_line`` for UTF-8."""
    if _SAFE_JSON.fullmatch(data):
        return data
    return json_line(data.decode("utf-8", "replace")).encode("utf-8", "replace")


class Cleaner:
    """Cleans a text that comes in pieces."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._marks = 0

    def add(self, text: str) -> str:
        """The next piece, cleaned."""
        if _SAFE.fullmatch(text):
            if text:
                self._marks = 0
            return text
        return "".join(map(self._escape_unsafe, text.replace("\r\n", "\n")))

    def _escape_unsafe(self, char: str) -> str:
        if char in "\n\t" or " " <= char <= "~":
            self._marks = 0
            return char
        category = unicodedata.category(char)
        if category in ("Mn", "Me"):
            self._marks += 1
            is_selector = (
                "\u180b" <= char <= "\u180f"
                or "\ufe00" <= char <= "\ufe0f"
                or "\U000e0100" <= char <= "\U000e01ef"
            )
            is_hidden = self._strict and (char in _BLANK or is_selector)
            return escape(char) if is_hidden or self._marks > MAX_MARKS else char
        self._marks = 0
        if category == "Zs":
            return escape(char) if self._strict else char
        if char in _JOINERS and not self._strict:
            return char
        if not char.isprintable() or (self._strict and char in _BLANK):
            return escape(char)
        return char


def escape(char: str) -> str:
    """As Python and C write it: ``\\x1b``, ``\\u202e``, ``\\U000e0041``."""
    code = ord(char)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"


def _json_escape(char: str) -> str:
    if char.isprintable() and char not in _BLANK:
        return char
    code = ord(char)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def any_of(words: Sequence[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    first, last = ", ".join(words[:-1]), words[-1]
    return f"{first} or {last}" if first else last


def counted(number: int, noun: str) -> str:
    """``1 turn``, ``2 turns``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
