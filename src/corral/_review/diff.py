"""A diff as data: its files, which lines of them it shows, and the text that a reviewer reads.

The diff may be a stranger's. A hunk ends after as many lines as its header says, so no content can
pass for the header of another file. Paths that lead out of the folder are refused. Contents that
are not UTF-8 are shown with replacement characters; such paths are quoted as git quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from corral._core.terminal_text import one_line, visible
from corral.errors import PromptError
from corral.values import path_from_printable, printable_path

ChangeKind = Literal["modified", "created", "deleted", "renamed", "copied"]

MAX_LINE = 2_000
"""Characters. A longer line is shown in pieces."""
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_NOWHERE = b"/dev/null"
_COMBINED = (b"diff --cc ", b"diff --combined ", b"@@@ ")
_KINDS: tuple[tuple[bytes, ChangeKind], ...] = (
    (b"new file mode ", "created"),
    (b"deleted file mode ", "deleted"),
    (b"rename from ", "renamed"),
    (b"copy from ", "copied"),
)
_MODE = re.compile(rb"(new mode|(?:new|deleted) file mode|index \S+) (\d{6})")
_TYPES = {b"120000": "link", b"160000": "submodule", b"100755": "executable"}


class DiffHunk(msgspec.Struct):
    """Lines that belong together, each with its mark: a blank, ``+`` or ``-``."""

    old_start: int
    new_start: int
    new_count: int = 0
    old_count: int = 0
    lines: list[str] = []


class ChangedFile(msgspec.Struct, kw_only=True):
    """A file of a diff."""

    path: str
    """Of a deleted file, the old one. Printable: see ``corral.values.printable_path``."""
    old_path: str = ""
    """Of a file that was renamed or copied."""
    kind: ChangeKind = "modified"
    type: str = ""
    """What it is, if it is no ordinary file, as a reviewer reads it."""
    is_binary: bool = False
    hunks: list[DiffHunk] = []

    @property
    def name(self) -> str:
        """The path on one line, as a reviewer reads it."""
        return one_line(self.path)

    def shows(self, line: int, end_line: int) -> bool:
        """Whether the diff shows one of these lines: of the new file, of a deleted one the old."""
        is_gone = self.kind == "deleted"
        for hunk in self.hunks:
            start = hunk.old_start if is_gone else hunk.new_start
            count = hunk.old_count if is_gone else hunk.new_count
            # Where lines were only removed, the line before them and the next one stand for them.
            if line < start + max(count, 2) and end_line >= start:
                return True
        return False


def parse(data: bytes) -> list[ChangedFile]:
    """The files of a diff in the unified format, as git and diff(1) write it; an empty one has
    none. Raises ``PromptError``."""
    if not data.strip():
        return []
    files = _Parser(data.split(b"\n")).parse()
    if not files:
        raise PromptError(
            "this is not a diff: it has no changed file",
            hint="Give the output of git diff, or of diff -u.",
        )
    return files


class _Parser:
    """Reads line by line. Lines that mean nothing, such as a commit message before the first file,
    are passed over."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._at = 0
        self._files: list[ChangedFile] = []
        self._has_names = False
        """The current file has had its ``---`` and ``+++``: the next ones are another file's."""

    def parse(self) -> list[ChangedFile]:
        while self._at < len(self._lines):
            line = self._lines[self._at].removesuffix(b"\r")
            self._at += 1
            if line.startswith(_COMBINED):
                raise PromptError(
                    "the combined diff of a merge cannot be reviewed",
                    hint="Give a diff against one parent, such as git diff HEAD^1 HEAD.",
                )
            if line.startswith(b"diff --git "):
                self._begin(_header_path(line.removeprefix(b"diff --git ")))
            elif line.startswith(b"--- ") and self._next().startswith(b"+++ "):
                self._names(line[4:])
            elif self._files:
                self._detail(line)
        return [file for file in self._files if file.path]

    def _next(self) -> bytes:
        return self._lines[self._at] if self._at < len(self._lines) else b""

    def _begin(self, path: str) -> None:
        self._files.append(ChangedFile(path=path, hunks=[]))
        self._has_names = False

    def _names(self, given: bytes) -> None:
        if self._has_names or not self._files:
            self._begin("")
        old, new = given, self._next().removesuffix(b"\r")[4:]
        self._at += 1
        self._has_names = True
        file = self._files[-1]
        is_created, is_deleted = _name(old) == _NOWHERE, _name(new) == _NOWHERE
        if is_created or is_deleted:
            file.kind = "created" if is_created else "deleted"
        file.path = _path(old if is_deleted else new, prefix=b"a/" if is_deleted else b"b/")

    def _detail(self, line: bytes) -> None:
        file = self._files[-1]
        if header := _HUNK.match(line):
            file.hunks.append(self._hunk(header))
            return
        if file.hunks:
            return
        for start, kind in _KINDS:
            if line.startswith(start):
                file.kind = kind
                if kind in ("renamed", "copied"):
                    file.old_path = _path(line.removeprefix(start))
        if mode := _MODE.match(line):
            file.type = _TYPES.get(mode[2], "")
            if mode[1] == b"new mode":
                file.type = f"now {file.type or 'not executable'}"
        if line.startswith((b"rename to ", b"copy to ")):
            file.path = _path(line.partition(b" to ")[2])
        elif line.startswith((b"Binary files ", b"GIT binary patch")):
            file.is_binary = True

    def _hunk(self, header: re.Match[bytes]) -> DiffHunk:
        old_start, old_left = int(header[1]), int(header[2] or 1)
        new_start, new_left = int(header[3]), int(header[4] or 1)
        hunk = DiffHunk(old_start, new_start, new_left, old_left, [])
        while old_left or new_left:
            if self._at >= len(self._lines):
                raise self._broken("ends too early")
            line = self._lines[self._at]
            mark = line[:1] or b" "  # some mailers remove the blank of an empty line
            self._at += 1
            if mark == b"\\":
                continue
            if mark not in (b" ", b"+", b"-"):
                raise self._broken("has other lines than its header says")
            old_left -= mark != b"+"
            new_left -= mark != b"-"
            if old_left < 0 or new_left < 0:
                raise self._broken("has other lines than its header says")
            hunk.lines.append((mark + line[1:]).decode("utf-8", "replace"))
        return hunk

    def _broken(self, why: str) -> PromptError:
        return PromptError(
            f"the diff is broken: the part before its line {self._at:,} {why}",
            hint="Give it as git wrote it, not copied from a page.",
        )


def _header_path(rest: bytes) -> str:
    """The path in ``a/PATH b/PATH``: needed where nothing else names it, as in a change of the
    mode. There both are the same."""
    if quoted := _QUOTED.match(rest):
        return _path(quoted[0], prefix=b"a/")
    half = len(rest) // 2
    first, second = rest[:half], rest[half + 1 :]
    return _path(second, prefix=b"b/") if first[2:] == second[2:] else ""


def _name(field: bytes) -> bytes:
    """A file name of a diff, without a time stamp, unquoted."""
    if field.startswith(b'"'):
        quoted = field[: field.rfind(b'"') + 1].decode("utf-8", "surrogateescape")
        return path_from_printable(quoted).encode("utf-8", "surrogateescape")
    return field.partition(b"\t")[0]


def _path(field: bytes, *, prefix: bytes = b"") -> str:
    """Printable, and relative to the top. Raises ``PromptError`` for one that leads elsewhere."""
    name = _name(field).removeprefix(prefix)
    parts = name.split(b"/")
    if not name or b"\0" in name or name.startswith(b"/") or b".." in parts:
        raise PromptError(f"a file of the diff is outside of the folder: {name[:200]!r}")
    return printable_path(name.decode("utf-8", "surrogateescape"))


def render(files: Sequence[ChangedFile], size: int) -> list[str]:
    """The diff as text with line numbers, in parts of about ``size`` characters. All of every line
    is in one of them: what is left out could be what the author wants to hide."""
    parts: list[str] = []
    lines: list[str] = []
    used = 0
    for file in files:
        head = _head(file)
        lines.append(head)
        used += len(head) + 1
        for line in _numbered(file):
            if used + len(line) > size and used > len(head) + 1:
                parts.append("\n".join(lines))
                lines = [f"{head} (continued)"]
                used = len(lines[0]) + 1
            lines.append(line)
            used += len(line) + 1
    if lines:
        parts.append("\n".join(lines))
    return parts


def _head(file: ChangedFile) -> str:
    origin = f" from {one_line(file.old_path)}" if file.old_path else ""
    type_text = f", {file.type}" if file.type else ""
    note = "; binary, not shown" if file.is_binary else ""
    return f"=== {file.name} ({file.kind}{origin}{type_text}{note})"


def _numbered(file: ChangedFile) -> Iterator[str]:
    for hunk in file.hunks:
        old, new = hunk.old_start, hunk.new_start
        yield f"--- lines from {old if file.kind == 'deleted' else new}"
        for line in hunk.lines:
            # A reviewer sees what hides or reorders text, and ends of lines of Windows do no harm.
            mark, text = line[0], visible(line[1:].removesuffix("\r"))
            # A removed line has no number in the new file.
            number = old if file.kind == "deleted" else "" if mark == "-" else new
            yield f"{number:>6} {mark} {text[:MAX_LINE]}"
            for start in range(MAX_LINE, len(text), MAX_LINE):
                yield f"     … {mark} {text[start : start + MAX_LINE]}"
            old += mark != "+"
            new += mark != "-"
