"""``.gitignore`` patterns, matched in time linear in the name. Pure functions on bytes.

The rules are those of gitignore(5). They are implemented here because git reads ignore files by
opening them, and waits for ever at a FIFO. Where a pattern is not understood it matches nothing:
then a file is listed that git would leave out, never the other way round.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

MOST_RULES = 2000
"""Rules of one file. Later ones are ignored."""

_FLAGS = re.DOTALL | (re.IGNORECASE if sys.platform == "darwin" else 0)
_ANY_FOLDERS = None
"""The component ``**``."""
_CLASSES = {
    b"alnum": b"0-9A-Za-z",
    b"alpha": b"A-Za-z",
    b"blank": b" \\t",
    b"cntrl": b"\\x00-\\x1f\\x7f",
    b"digit": b"0-9",
    b"graph": b"!-~",
    b"lower": b"a-z",
    b"print": b" -~",
    b"punct": b"!-/:-@\\[-`{-~",
    b"space": b" \\t\\n\\v\\f\\r",
    b"upper": b"A-Z",
    b"xdigit": b"0-9A-Fa-f",
}

Component = re.Pattern[bytes] | None


class Rule:
    """One line of an ignore file."""

    __slots__ = ("components", "is_folder_only", "is_negated", "name", "source")

    def __init__(self, line: bytes) -> None:
        """Raises ``ValueError`` if the pattern can match nothing."""
        self.is_negated = line.startswith(b"!")
        pattern = line[1:] if self.is_negated else line
        self.is_folder_only = pattern.endswith(b"/")
        if self.is_folder_only:
            pattern = pattern[:-1]
        if not pattern:
            raise ValueError("empty")
        self.name: re.Pattern[bytes] | None = None
        self.components: list[Component] = []
        self.source = b""
        """Of the expression for ``name``."""
        if b"/" not in pattern:
            self.source = _expression(pattern)
            self.name = re.compile(self.source, _FLAGS)
            return
        for part in pattern.removeprefix(b"/").split(b"/"):
            is_any = part == b"**"
            self.components.append(
                _ANY_FOLDERS if is_any else re.compile(_expression(part), _FLAGS)
            )

    def matches(self, name: bytes, parts: Sequence[bytes]) -> bool:
        """``parts`` is the path from the rule's folder, ``name`` its last part."""
        if self.name is not None:
            return self.name.fullmatch(name) is not None
        return _match_components(self.components, parts)


class Rules:
    """One ignore file. ``depth`` is the number of folders between the top and its own."""

    def __init__(self, data: bytes, depth: int = 0) -> None:
        self.depth = depth
        self._rules = parse(data)
        by_name = [rule.source for rule in self._rules if rule.source]
        self._any_name = re.compile(b"|".join(b"(?:%s)" % each for each in by_name), _FLAGS)
        self._has_names = bool(by_name)
        self._has_paths = len(by_name) < len(self._rules)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def verdict(self, parts: Sequence[bytes], *, is_folder: bool) -> bool | None:
        """Whether the path (from the top) is ignored; None if no rule matches it."""
        name = parts[-1]
        if not self._has_paths and not (self._has_names and self._any_name.fullmatch(name)):
            return None
        below = parts[self.depth :]
        for rule in reversed(self._rules):
            if (is_folder or not rule.is_folder_only) and rule.matches(name, below):
                return not rule.is_negated
        return None


def parse(data: bytes) -> list[Rule]:
    """The rules of an ignore file, in its order."""
    found: list[Rule] = []
    for raw in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = _without_trailing_spaces(raw.removesuffix(b"\r"))
        if not line or line.startswith(b"#") or b"\0" in line:
            continue
        try:
            found.append(Rule(line))
        except (ValueError, re.error, OverflowError):
            continue
        if len(found) >= MOST_RULES:
            break
    return found


def is_ignored(chain: Sequence[Rules], parts: Sequence[bytes], *, is_folder: bool) -> bool:
    """``chain``: the rules that apply, those of the nearest folder first."""
    for rules in chain:
        verdict = rules.verdict(parts, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _match_components(pattern: Sequence[Component], parts: Sequence[bytes]) -> bool:
    """Whether the path matches. ``**`` matches any number of folders; at the end, at least one."""
    if pattern and pattern[-1] is _ANY_FOLDERS:
        pattern = [*pattern, re.compile(b".*", _FLAGS)]
    at = place = 0
    back: tuple[int, int] | None = None
    while place < len(parts):
        if at < len(pattern) and pattern[at] is _ANY_FOLDERS:
            at += 1
            back = (at, place)
            continue
        wanted = pattern[at] if at < len(pattern) else None
        if wanted is not None and wanted.fullmatch(parts[place]):
            at += 1
            place += 1
        elif back is not None:
            back = (back[0], back[1] + 1)
            at, place = back
        else:
            return False
    return at == len(pattern)


def _without_trailing_spaces(line: bytes) -> bytes:
    end = len(line)
    while end and line[end - 1 : end] == b" ":
        before = line[: end - 1]
        escapes = len(before) - len(before.rstrip(b"\\"))
        if escapes % 2:
            break
        end -= 1
    return line[:end]


def _expression(glob: bytes) -> bytes:
    """A regular expression without backtracking: each piece between two stars matches at its first
    place, which is correct because its length is fixed."""
    pieces = _pieces(glob)
    if len(pieces) == 1:
        return pieces[0]
    middle = b"".join(b"(?>.*?%s)" % piece for piece in pieces[1:-1] if piece)
    return pieces[0] + middle + b".*" + pieces[-1]


def _pieces(glob: bytes) -> list[bytes]:
    pieces, at = [b""], 0
    while at < len(glob):
        char = glob[at : at + 1]
        at += 1
        if char == b"*":
            pieces.append(b"")
        elif char == b"?":
            pieces[-1] += b"."
        elif char == b"[":
            text, at = _bracket(glob, at)
            pieces[-1] += text
        else:
            if char == b"\\":
                char = glob[at : at + 1]
                at += 1
                if not char:
                    raise ValueError("a backslash at the end")
            pieces[-1] += re.escape(char)
    return pieces


def _bracket(glob: bytes, at: int) -> tuple[bytes, int]:
    """The set that starts after ``[``, and where it ends. Raises ``ValueError``."""
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    members: list[bytes] = []
    previous = b""
    first = at
    while at == first or glob[at : at + 1] != b"]":
        if glob[at : at + 2] == b"[:":
            member, at = _character_class(glob, at + 2)
            members.append(member)
            previous = b""
        elif previous and glob[at : at + 1] == b"-" and glob[at + 1 : at + 2] not in (b"", b"]"):
            last, at = _set_member(glob, at + 1)
            if previous <= last:
                members.append(b"%s-%s" % (re.escape(previous), re.escape(last)))
            previous = b""
        else:
            previous, at = _set_member(glob, at)
            members.append(re.escape(previous))
    at += 1
    inside = b"".join(members)
    if negated:
        return (b"[^%s]" % inside if inside else b"."), at
    return (b"[%s]" % inside if inside else b"(?!)"), at


def _character_class(glob: bytes, at: int) -> tuple[bytes, int]:
    """The class whose name starts here, after ``[:``, and where it ends."""
    end = glob.find(b":]", at)
    name = glob[at:end] if end >= 0 else b""
    if name not in _CLASSES:
        raise ValueError("an unknown class")
    return _CLASSES[name], end + 2


def _set_member(glob: bytes, at: int) -> tuple[bytes, int]:
    """The character of a set at this position, maybe after a backslash, and where it ends."""
    at += glob[at : at + 1] == b"\\"
    char = glob[at : at + 1]
    if not char:
        raise ValueError("a set that does not end")
    return char, at + 1
