"""The v4a patch format, parsed and matched against text. Nothing is read or written here.

::

    *** Begin Patch
    *** Update File: src/a.py
    *** Move to: src/b.py
    @@ class Greeter
    @@ def greet(self):
     context
    -gone
    +new
    *** End of File
    *** Add File: c.txt
    +every line
    *** Delete File: d.txt
    *** End Patch

A hunk has no line numbers: it is found by its context, below the lines after ``@@``. Context is
compared exactly, then without trailing spaces, then without leading and trailing spaces and with
plain punctuation. A hunk that fits in two places is an error. Context lines stay as they are in the
file, also if the patch writes them in another way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import msgspec

from corral._builtin.tools.workspace import ToolError

BEGIN, END, EOF = "*** Begin Patch", "*** End Patch", "*** End of File"
ADD, UPDATE, DELETE = "*** Add File: ", "*** Update File: ", "*** Delete File: "
MOVE = "*** Move to: "
LISTED = 10
"""Places that an error lists for an ambiguous hunk."""
MAX_SECTIONS = 1000
"""Sections of one patch. Several sections may be about one file."""
MAX_DROPPED = 16
"""Empty lines at the end of a hunk that may be left out to make it fit."""

_HEADER = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.*)$", re.MULTILINE)
_NUMBERS = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?")
"""Line numbers as git writes them; some models add them. The text after them is chosen by git and
need not be above the hunk."""
_LINE = re.compile(r"([^\n]*?)(\r?\n|\Z)")
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("‘’‚‛", "'"),
        **dict.fromkeys("“”„‟", '"'),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f\u205f\u3000", " "),
        "…": "...",
    }
)


class TextHunk(msgspec.Struct):
    line: int
    """The line of the patch where it starts."""
    anchors: list[str]
    rows: list[tuple[str, str]]
    """For each line: a space, ``-`` or ``+``, and the text."""
    at_end: bool = False

    def __str__(self) -> str:
        anchors = [f"@@ {anchor}" for anchor in self.anchors] or ["@@"]
        return "\n".join([*anchors, *(sign + text for sign, text in self.rows)])


class Add(msgspec.Struct):
    path: str
    lines: list[str]


class Delete(msgspec.Struct):
    path: str


class Update(msgspec.Struct):
    path: str
    move_to: str | None
    hunks: list[TextHunk]


Step = Add | Delete | Update


def paths_in(patch: str) -> tuple[str, ...]:
    """Every path that a patch names, also if the patch is invalid."""
    return tuple(dict.fromkeys(path.strip() for path in _HEADER.findall(patch)))


def parse(patch: str) -> list[Step]:
    """The steps of a patch. Raises ``ToolError`` that names the line."""
    return _PatchReader(patch).steps()


class _PatchReader:
    """Reads a patch line by line."""

    def __init__(self, patch: str) -> None:
        self._rows = [row.removesuffix("\r") for row in patch.split("\n")]
        while self._rows and not self._rows[-1].strip().strip("`"):
            self._rows.pop()
        self._at = 0
        self._following: list[str] = []
        """For each row the next one that is not blank, or the row itself; at the end ``END``."""
        following = END
        for row in reversed(self._rows):
            following = row if row.strip() else following
            self._following.append(following)
        self._following.reverse()
        while self._at < len(self._rows) and self._row.strip() != BEGIN:
            if self._row.strip() and not self._row.startswith("```"):
                self._fail(f"a patch starts with {BEGIN!r}")
            self._at += 1

    @property
    def _row(self) -> str:
        return self._rows[self._at] if self._at < len(self._rows) else ""

    def _fail(self, why: str) -> None:
        got = (
            f", got: {self._row[:200]!r}"
            if self._at < len(self._rows)
            else ", got the end of the patch"
        )
        raise ToolError(f"line {self._at + 1} of the patch: {why}{got}")

    def steps(self) -> list[Step]:
        if self._at >= len(self._rows):
            self._fail(f"a patch starts with {BEGIN!r}")
        self._at += 1
        steps: list[Step] = []
        while self._row.strip() != END:
            if len(steps) >= MAX_SECTIONS:
                self._fail(f"a patch has at most {MAX_SECTIONS} sections: give several patches")
            if self._row.startswith(ADD):
                steps.append(Add(self._path(ADD), self._added_lines()))
            elif self._row.startswith(DELETE):
                steps.append(Delete(self._path(DELETE)))
            elif self._row.startswith(UPDATE):
                path = self._path(UPDATE)
                move_to = self._path(MOVE) if self._row.startswith(MOVE) else None
                steps.append(Update(path, move_to, self._hunks(path, move_to)))
            elif not self._row.strip() and self._at < len(self._rows):
                self._at += 1
            else:
                self._fail(f"expected {ADD!r}, {UPDATE!r}, {DELETE!r} or {END!r}")
        if self._at + 1 < len(self._rows):
            self._at += 1
            self._fail(f"nothing may follow {END!r}")
        if not steps:
            self._fail("the patch changes nothing: it names no file before this")
        return steps

    def _path(self, header: str) -> str:
        path = self._row.removeprefix(header).strip()
        if not path:
            self._fail("a path is missing")
        self._at += 1
        return path

    def _added_lines(self) -> list[str]:
        lines: list[str] = []
        while self._at < len(self._rows) and not self._row.startswith("*** "):
            if self._row.startswith("+"):
                lines.append(self._row[1:])
            elif self._row.strip():
                self._fail("every line of a new file starts with +")
            self._at += 1
        return lines

    def _hunks(self, path: str, move_to: str | None) -> list[TextHunk]:
        hunks: list[TextHunk] = []
        while self._at < len(self._rows) and not self._is_header():
            if not self._row.strip() and self._is_last_blank():
                self._at += 1
                continue
            hunks.append(self._hunk())
        if not hunks and move_to is None:
            self._fail(f"the update of {path} has no hunk before this")
        return hunks

    def _is_header(self) -> bool:
        return self._row.startswith((ADD, UPDATE, DELETE)) or self._row.strip() == END

    def _is_last_blank(self) -> bool:
        """Whether the next line that is not blank starts another section: then the blank lines
        before it mean nothing."""
        following = self._following[self._at] if self._at < len(self._rows) else END
        return following.startswith("*** ") and following.strip() != EOF

    def _hunk(self) -> TextHunk:
        hunk = TextHunk(self._at + 1, [], [])
        while self._row.startswith("@@"):
            if not _NUMBERS.match(self._row) and (anchor := self._row[2:].removeprefix(" ")):
                hunk.anchors.append(anchor)
            self._at += 1
        while self._at < len(self._rows) and not self._row.startswith("@@"):
            row = self._row
            if row.strip() == EOF:
                hunk.at_end = True
                self._at += 1
                break
            # A line with one space is an empty line of the file. One without it may mean nothing.
            if self._is_header() or (not row and self._is_last_blank()):
                break
            if not row:
                hunk.rows.append((" ", ""))
            elif row[0] in " +-":
                hunk.rows.append((row[0], row[1:]))
            elif not row.startswith("\\ No newline"):
                self._fail("a line of a hunk starts with a space, - or +, and a new hunk with @@")
            self._at += 1
        if not any(sign != " " for sign, _ in hunk.rows):
            self._fail(f"the hunk from line {hunk.line} changes nothing")
        return hunk


_LEVELS: tuple[Callable[[str], str], ...] = (
    lambda line: line,
    str.rstrip,
    lambda line: line.translate(_PLAIN).strip(),
)


class _Lines:
    """The lines of a file, searched in linear time: at each level of comparison, each distinct line
    is one character of a text."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._texts: dict[int, tuple[str, dict[str, str]]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def first(self, old: list[str], begin: int) -> int | None:
        """The first place at or after ``begin``, by the strictest comparison that finds any."""
        return next(iter(self.some(old, begin, 1)), None)

    def some(self, old: list[str], begin: int, count: int) -> list[int]:
        """At most ``count`` places at or after ``begin``, all by one comparison."""
        for level in range(len(_LEVELS)):
            text, wanted = self._coded(old, level)
            places: list[int] = []
            at = text.find(wanted, begin) if wanted else -1
            while at >= 0 and len(places) < count:
                places.append(at)
                at = text.find(wanted, at + 1)
            if places:
                return places
        return []

    def fits(self, old: list[str], at: int) -> bool:
        """Whether the old lines are at this place and are the last ones."""
        for level in range(len(_LEVELS)):
            text, wanted = self._coded(old, level)
            if wanted and text[at:] == wanted:
                return True
        return False

    def _coded(self, old: list[str], level: int) -> tuple[str, str]:
        """The file and the wanted lines as texts. The second is empty if a line is missing."""
        same = _LEVELS[level]
        if level not in self._texts:
            codes: dict[str, str] = {}
            for line in map(same, self._lines):
                # Surrogates are left out: they are not characters.
                number = len(codes) + 0x800 * (len(codes) >= 0xD800)
                if number > sys.maxunicode:
                    raise ToolError("the file has too many lines for a patch: use write_file")
                codes.setdefault(line, chr(number))
            self._texts[level] = "".join([codes[same(line)] for line in self._lines]), codes
        text, codes = self._texts[level]
        wanted = [codes.get(same(line), "") for line in old]
        return text, "".join(wanted) if all(wanted) else ""


def apply(hunks: list[TextHunk], body: str, name: str) -> str:
    """The text with every hunk applied, each below the one before. Line endings and a missing
    newline at the end stay. Raises ``ToolError`` that shows the hunk."""
    cut = [(line[1], line[2]) for line in _LINE.finditer(body)]
    if cut and cut[-1] == ("", ""):
        cut.pop()
    lines = _Lines([text for text, _ in cut])
    endings = [ending for _, ending in cut if ending]
    ending = "\r\n" if endings.count("\r\n") * 2 > len(endings) else "\n"
    out: list[tuple[str, str]] = []
    done = 0
    for hunk in hunks:
        rows, at = _locate(hunk, lines, done, name)
        out += cut[done:at]
        done = at
        for sign, text in rows:
            if sign == "+":
                out.append((text, ending))
                continue
            if sign == " ":
                out.append(cut[done])
            done += 1
    out += cut[done:]
    # Only the last line may have no ending, and only if the last line had none before.
    is_closed = not cut or bool(cut[-1][1])
    new_lines = [text + (end or ending) for text, end in out]
    if new_lines and not is_closed:
        new_lines[-1] = out[-1][0]
    return "".join(new_lines)


def _locate(
    hunk: TextHunk, lines: _Lines, begin: int, name: str
) -> tuple[list[tuple[str, str]], int]:
    """The rows of the hunk (empty ones at the end may be dropped), and the line where they apply.
    Raises ``ToolError``."""
    # Every line at which the search for the hunk may start.
    starts = [begin]
    if hunk.anchors:
        starts = lines.some([hunk.anchors[0]], begin, len(lines))
        for anchor in hunk.anchors[1:]:
            starts = _below([anchor], lines, [start + 1 for start in starts])
        if not starts:
            shown = " / ".join(f"@@ {anchor}" for anchor in hunk.anchors)
            order = f" below line {begin}, where the hunk before it ends" if begin else ""
            raise ToolError(
                f"{name}: no line is {shown!r} (line {hunk.line} of the patch){order}\n{hunk}"
            )
    rows = hunk.rows
    for _ in range(MAX_DROPPED + 1):
        old = _old_lines(rows)
        if not old:
            if len(set(starts)) > 1:
                raise _ambiguous(hunk, starts, name)
            return rows, starts[0] + 1 if hunk.anchors and not hunk.at_end else len(lines)
        places = _find_places(old, lines, starts, hunk)
        if len(places) > 1:
            raise _ambiguous(hunk, places, name)
        if places:
            return rows, places[0]
        if rows[-1] != (" ", ""):
            break
        # An empty line at the end of a hunk often means nothing.
        rows = rows[:-1]
    raise _not_found(hunk, lines, starts, begin, name)


def _old_lines(rows: list[tuple[str, str]]) -> list[str]:
    return [text for sign, text in rows if sign != "+"]


def _not_found(
    hunk: TextHunk, lines: _Lines, starts: list[int], begin: int, name: str
) -> ToolError:
    rows = hunk.rows
    for _ in range(MAX_DROPPED):
        if rows[-1:] != [(" ", "")]:
            break
        rows = rows[:-1]
    old, anywhere = _old_lines(rows), msgspec.structs.replace(hunk, at_end=False)
    if hunk.at_end and _find_places(old, lines, starts, anywhere):
        why = "is not at the end of the file, although '*** End of File' follows it"
    elif begin and _find_places(old, lines, [0], anywhere):
        why = "is only above the previous hunk: write hunks in the order of the file"
    else:
        why = "was not found: read the file again, and copy its lines exactly"
    return ToolError(
        f"{name}: the context of this hunk (line {hunk.line} of the patch) {why}\n{hunk}"
    )


def _find_places(old: list[str], lines: _Lines, starts: list[int], hunk: TextHunk) -> list[int]:
    """Without an anchor, all places. With anchors, the first place below each of them."""
    if not old:
        return []
    if hunk.at_end:
        last = len(lines) - len(old)
        return [last] if last >= min(starts) and last >= 0 and lines.fits(old, last) else []
    if not hunk.anchors:
        return lines.some(old, starts[0], LISTED + 1)
    return _below(old, lines, starts)


def _below(old: list[str], lines: _Lines, starts: list[int]) -> list[int]:
    """The first place below each start, each place once."""
    places: list[int] = []
    for start in sorted(starts):
        if places and start <= places[-1]:
            continue  # the same place, unless a looser comparison finds one before it
        at = lines.first(old, start)
        if at is None:
            break
        places.append(at)
    return places


def _ambiguous(hunk: TextHunk, places: list[int], name: str) -> ToolError:
    listed = ", ".join(str(at + 1) for at in places[:LISTED]) + " …" * (len(places) > LISTED)
    return ToolError(
        f"{name}: this hunk (line {hunk.line} of the patch) fits at lines {listed}: add more"
        f" lines of context, or a line above it after @@\n{hunk}"
    )
