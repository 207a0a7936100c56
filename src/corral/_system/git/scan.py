"""Find a repository's folders and list the files of its work tree, without starting git.

git itself would obey the configuration of any repository that it finds. Here only the names of
folders are read: ``.git`` may be a folder, a link to one, or a file that names one (linked
worktrees, submodules), and ``commondir`` names the folder that linked worktrees share.

A listing leaves out what the ignore files name, unless it is tracked, and everything called
``.git``, at any depth. An embedded repository is listed like any other folder. Links are not
followed.

The rules of ignore files are those of gitignore(5), matched in time linear in the name. They are
implemented here because git reads ignore files by opening them, and waits for ever at a FIFO. Where
a pattern is not understood it matches nothing: then a file is listed that git would leave out,
never the other way round.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from corral._system.fs import read_small
from corral._system.git import settings

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


class IgnoreRule:
    """One line of an ignore file."""

    __slots__ = ("components", "is_folder_only", "is_negated", "name", "source")

    def __init__(self, line: bytes) -> None:
        """Raises ``ValueError`` if the pattern can match nothing."""
        self.is_negated: bool = line.startswith(b"!")
        pattern = line[1:] if self.is_negated else line
        self.is_folder_only: bool = pattern.endswith(b"/")
        if self.is_folder_only:
            pattern = pattern[:-1]
        if not pattern:
            raise ValueError("empty")
        self.name: re.Pattern[bytes] | None = None
        self.components: list[Component] = []
        self.source: bytes = b""
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
        # ``**`` matches any number of folders; at the end, at least one.
        pattern = self.components
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


def parse(data: bytes) -> list[IgnoreRule]:
    """The rules of an ignore file, in its order."""
    found: list[IgnoreRule] = []
    for raw in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = _without_trailing_spaces(raw.removesuffix(b"\r"))
        if not line or line.startswith(b"#") or b"\0" in line:
            continue
        try:
            found.append(IgnoreRule(line))
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


def covers(rules: Rules, path: bytes) -> bool:
    """Whether rules of an ignore file match a file or a folder above it, and none takes that
    back."""
    return bool(verdict_below(rules, path))


def verdict_below(rules: Rules, path: bytes) -> bool | None:
    """What the rules say of a file, or else of the nearest folder above it that they match; None
    if they match neither."""
    parts = path.split(b"/")
    verdicts = [
        rules.verdict(parts[:depth], is_folder=depth < len(parts))
        for depth in range(1, len(parts) + 1)
    ]
    return next((each for each in reversed(verdicts) if each is not None), None)


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
            end = glob.find(b":]", at + 2)
            name = glob[at + 2 : end] if end >= 0 else b""
            if name not in _CLASSES:
                raise ValueError("an unknown class")
            members.append(_CLASSES[name])
            previous, at = b"", end + 2
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


def _set_member(glob: bytes, at: int) -> tuple[bytes, int]:
    """The character of a set at this position, maybe after a backslash, and where it ends."""
    at += glob[at : at + 1] == b"\\"
    char = glob[at : at + 1]
    if not char:
        raise ValueError("a set that does not end")
    return char, at + 1


_SMALL = 64 * 1024
_HEX = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LARGEST_IGNORE_FILE = 256 * 1024
MOST_ENTRIES = 2_000_000
"""Files and folders that one listing looks at."""


class RepositoryLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a repository."""

    top: Path | None
    """The work tree that was found; None for a bare repository."""
    git_dir: Path
    """Holds ``HEAD`` and ``index``."""
    common: Path
    """Holds ``objects``, ``refs`` and ``config``. Differs from ``git_dir`` in linked worktrees."""

    @property
    def head(self) -> str | None:
        """The full name of a reference, or a commit's id."""
        return read_head(self.git_dir)


def find_repository(folder: Path) -> RepositoryLayout | None:
    """Find the repository around a folder: a work tree, or a bare repository."""
    folder = Path(os.path.abspath(folder))
    for each in (folder, *folder.parents):
        dot_git = each / ".git"
        git_dir = dot_git.resolve() if dot_git.is_dir() else None
        if git_dir is None and (pointer := _read_line(dot_git)).startswith("gitdir:"):
            git_dir = Path(os.path.normpath(each / pointer.removeprefix("gitdir:").strip()))
        if git_dir is not None and (common := _common(git_dir)) is not None:
            return RepositoryLayout(top=each, git_dir=git_dir, common=common)
        if (common := _common(each)) is not None:
            return RepositoryLayout(top=None, git_dir=each, common=common)
    return None


def project_of(folder: str) -> str:
    """The repository of a folder: of a linked worktree the one that it belongs to. Without a
    repository the folder itself."""
    if not folder or "://" in folder:
        return folder
    try:
        layout = find_repository(Path(folder))
    except OSError:
        layout = None
    if layout is None:
        return os.path.realpath(folder)
    return str(layout.common.parent if layout.common.name == ".git" else layout.common)


def read_head(git_dir: Path) -> str | None:
    """The full name of the reference in ``HEAD``, or a commit's id; None if neither is there."""
    data = read_small(git_dir / "HEAD", _SMALL)
    text = (data or b"").decode("utf-8", "replace").strip()
    if text.startswith("ref:"):
        name = text.removeprefix("ref:").strip()
        return name if name.startswith("refs/") else None
    return text if _HEX.fullmatch(text) else None


def _common(git_dir: Path) -> Path | None:
    """The folder that holds the objects; None if this is not a git folder."""
    if read_head(git_dir) is None:
        return None
    other = _read_line(git_dir / "commondir")
    common = Path(os.path.normpath(git_dir / other)) if other else git_dir
    is_git = (common / "objects").is_dir() and (common / "refs").is_dir()
    return common if is_git else None


def _read_line(path: Path) -> str:
    data = read_small(path, _SMALL)
    return os.fsdecode(data or b"").strip()


class TooManyFiles(Exception):
    """The folder has more entries than a listing looks at."""


class Scope(msgspec.Struct, frozen=True):
    """Which ignore rules apply to a folder, besides its own ignore files and those below it."""

    outer: tuple[Rules, ...] = ()
    """The nearest first."""
    parts: tuple[bytes, ...] = ()
    """The folder's path from the top of its repository."""


def scope_of(folder: Path) -> Scope | None:
    """The rules for a folder in a repository; None if it is not in a work tree."""
    found = find_repository(folder)
    if found is None or found.top is None:
        return None
    return scope_below(found.top, folder, found.common)


def scope_below(top: Path, folder: Path, common: Path) -> Scope:
    """The rules for ``folder``, which is ``top`` or below it: those of the folders between, of
    the repository, and of the user."""
    parts = Path(os.path.abspath(folder)).relative_to(top).parts
    outer: list[Rules] = []
    for depth in range(len(parts)):
        outer.insert(0, _rules(os.fsencode(top.joinpath(*parts[:depth])), depth))
    for path in (common / "info" / "exclude", settings.user_ignore_file()):
        data = read_small(path, LARGEST_IGNORE_FILE) if path else None
        outer.append(Rules(data or b""))
    return Scope(tuple(each for each in outer if each), tuple(os.fsencode(part) for part in parts))


def _do_nothing(*_: object) -> None:
    pass


def files(
    root: Path,
    scope: Scope | None,
    tracked: Collection[bytes] = (),
    *,
    skipped: Collection[bytes] = (b".git",),
    on_error: Callable[[OSError], None] = _do_nothing,
    on_ignored: Callable[[bytes, bool], None] = _do_nothing,
) -> Iterator[bytes]:
    """Paths below ``root`` of everything that is not a folder. ``tracked`` ones are listed even if
    they are ignored. Without a scope nothing is ignored. ``on_error`` is called for each folder
    that cannot be read; such a folder is left out. ``on_ignored`` is called with the path of what
    is left out, and whether it is a folder. Raises ``TooManyFiles``."""
    base = os.fsencode(root)
    seen: set[bytes] = set()  # tracked files that were found
    looked_at = 0
    # Of a folder: its path from the root, its path from the top of the repository, and the rules
    # that apply there, those of the nearest folder first.
    outer = scope or Scope()
    pending = [(b"", outer.parts, outer.outer)]
    while pending:
        above, parts, rules = pending.pop()
        folder = os.path.join(base, above) if above else base
        entries: list[os.DirEntry[bytes]] = []
        try:
            entries += os.scandir(folder)
        except OSError as error:
            on_error(error)
        looked_at += len(entries)
        if looked_at > MOST_ENTRIES:
            raise TooManyFiles
        if scope is not None and any(entry.name == b".gitignore" for entry in entries):
            own = _rules(folder, len(parts))
            rules = (own, *rules) if own else rules
        for entry in entries:
            if entry.name in skipped:
                continue
            path = os.path.join(above, entry.name) if above else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and path in tracked:
                seen.add(path)
                yield path
            elif not rules or not is_ignored(rules, (*parts, entry.name), is_folder=is_folder):
                if is_folder:
                    pending.append((path, (*parts, entry.name), rules))
                else:
                    yield path
            else:
                on_ignored(path, is_folder)
    if scope is not None:
        yield from _ignored_but_tracked(base, tracked, seen)


def _ignored_but_tracked(
    base: bytes, tracked: Collection[bytes], seen: set[bytes]
) -> Iterator[bytes]:
    """Tracked files that the walk did not find and that exist, in real folders."""
    for path in tracked:
        if path in seen:
            continue
        *folders, name = path.split(b"/")
        at = base
        with contextlib.suppress(OSError, ValueError):
            for part in folders:
                at = os.path.join(at, part)
                if part == b".git" or not stat.S_ISDIR(os.lstat(at).st_mode):
                    break
            else:
                if not stat.S_ISDIR(os.lstat(os.path.join(at, name)).st_mode):
                    yield path


def _rules(folder: bytes, depth: int) -> Rules:
    data = read_small(os.path.join(folder, b".gitignore"), LARGEST_IGNORE_FILE)
    return Rules(data or b"", depth)
