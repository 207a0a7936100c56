"""The paths that a tool call names, whatever its fields are called.

For judging a call before it runs: better a path too many than one too few. ``ToolUse.paths``
is for reporting and names fewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import cast

from corral.events import Json, ToolKind

FIELDS = frozenset(
    {
        "absolutepath",
        "cwd",
        "destination",
        "destinationpath",
        "dir",
        "directory",
        "dirpath",
        "file",
        "filename",
        "filepath",
        "filepaths",
        "files",
        "folder",
        "newpath",
        "notebookpath",
        "oldpath",
        "path",
        "paths",
        "relativepath",
        "relativeworkspacepath",
        "source",
        "sourcepath",
        "targetfile",
        "targetpath",
        "uri",
    }
)
"""In lower case and without ``_`` and ``-``."""
ENDINGS = ("path", "paths", "file", "files", "dir", "dirs", "directory", "folder", "filename")
"""Of further names, such as ``output_path`` and ``base_dir``."""
GLOBS = frozenset({"glob", "globs", "include", "includes", "filepattern", "filefilter", "pattern"})
"""Fields that hold patterns of file names."""
CHANGES = "changes"
"""An object whose keys are paths, or a list of objects that name them."""
MOST_DEPTH = 8

_PATCHED = re.compile(
    r"^\*\*\* (?:Add File|Update File|Delete File|Move to):[ \t]*(.+?)[ \t]*\r?$", re.MULTILINE
)
_DIFFED = re.compile(r"^(?:---|\+\+\+) (?:[abciwo]/)?([^\t\r\n]+)", re.MULTILINE)
_RENAMED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)
_WILD = re.compile(r"[*?\[{(!|]")
_OUT = re.compile(r"(?:^|[{,(|!])[ \t]*[/~]|(?:^|[/{,(|!])\.\.(?:$|[/},)|])")


def named_paths(name: str, kind: ToolKind, given: Json) -> tuple[str, ...]:
    """Each path once. Patterns count for what stands before their first wildcard, and whole where
    they may lead up or begin at the root; ``name`` tells a pattern of file names from a regular
    expression to search for."""
    regex = kind == "search" and any(word in name.lower() for word in ("grep", "search", "rg"))
    found = [*_named(given, regex=regex, depth=0)]
    if kind in ("edit", "delete", "move"):
        found += _patched(given, depth=0)
    return tuple(dict.fromkeys(found))


def patched_paths(text: str) -> tuple[str, ...]:
    """The files that a patch changes: of the ``*** Update File:`` kind, or a unified diff."""
    found = [*_PATCHED.findall(text), *_RENAMED.findall(text)]
    if not found:
        found = [path for path in _DIFFED.findall(text) if path != "/dev/null"]
    return tuple(dict.fromkeys(found))


def _named(given: Json, *, regex: bool, depth: int) -> Iterator[str]:
    if depth > MOST_DEPTH:
        return
    if isinstance(given, list):
        for each in given:
            yield from _named(each, regex=regex, depth=depth + 1)
    elif isinstance(given, dict):
        for key, value in given.items():
            plain = key.lower().replace("_", "").replace("-", "")
            if plain in FIELDS or plain.endswith(ENDINGS):
                yield from _texts(value)
            elif plain in GLOBS and not (regex and plain == "pattern"):
                yield from (part for text in _texts(value) for part in _of_glob(text))
            elif plain == CHANGES and isinstance(value, dict):
                yield from value
            yield from _named(value, regex=regex, depth=depth + 1)


def _patched(given: Json, depth: int) -> Iterator[str]:
    if isinstance(given, str):
        if _PATCHED.search(given) or given.startswith(("--- ", "diff ")):
            yield from patched_paths(given)
    elif depth <= MOST_DEPTH and isinstance(given, dict | list):
        below = given.values() if isinstance(given, dict) else given
        for each in below:
            yield from _patched(each, depth + 1)


def _of_glob(pattern: str) -> Iterable[str]:
    if _OUT.search(pattern):
        # Judged as it stands: absolute or with .. in it, it is mostly refused.
        found = _WILD.search(pattern)
        head = pattern[: found.start()] if found else pattern
        return (head,) if head.startswith("/") and ".." not in pattern else (f"/{pattern}",)
    found = _WILD.search(pattern)
    head = pattern[: found.start()].rpartition("/")[0] if found else pattern
    return (head,) if head else ()


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for text in cast("list[object]", value) if isinstance(text, str))
