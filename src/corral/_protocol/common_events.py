"""Tool calls and warnings, as the streams of several agents have them in common.

``build_tool_use`` and the functions beside it build events. ``named_paths`` finds the paths that a
tool call names, whatever its fields are called, for deciding about a call before it runs: a path
too many is better than one too few. ``ToolUse.paths`` is for reporting and lists fewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from corral.events import Error, ToolKind, ToolUse
from corral.values import Json, as_objects, as_texts

PATHS = ("file_path", "filePath", "notebook_path", "dir_path", "path")
"""Argument names that hold the path of a file or folder."""
_PATH_NAMES = frozenset(PATHS)
_SUBJECTS = ("command", *PATHS, "pattern", "url", "query", "description")
"""Arguments for the title of a call; the first that exists is used."""
_SUBJECT_NAMES = frozenset(_SUBJECTS)


def build_tool_use(
    call_id: str, name: str, given: Json, *, kind: ToolKind, parent: str | None = None
) -> ToolUse:
    subject: str | None = None
    paths: tuple[str, ...] = ()
    if isinstance(given, dict):
        if len(given) == 1:  # most calls
            ((key, value),) = given.items()
            if key in _SUBJECT_NAMES and isinstance(value, str):
                subject = value
                paths = (value,) if key in _PATH_NAMES else ()
        else:
            for key in _SUBJECTS:
                if key in given and isinstance(value := given[key], str):
                    subject = value
                    break
            # Most are missing, which ``in`` finds out fastest. Some models give one path twice.
            named = [
                path for name in PATHS if name in given and isinstance(path := given[name], str)
            ]
            paths = tuple(named) if len(named) < 2 else tuple(dict.fromkeys(named))
    title = f"{name} {subject}" if subject else name
    if parent is None:
        return ToolUse(call_id, name, kind, title, given, paths)
    return ToolUse(call_id, name, kind, title, given, paths, parent=parent)


PERMISSION_DENIED = "permission was refused"
"""The error of a call that the policy denied, where the agent gives no reason of its own."""


_BY_RULE = re.compile(r"Tool execution (for \S+ )?denied by policy\.?\s*")
"""How several agents begin the error of a call that one of their rules denied."""


def split_denial(text: str | None) -> tuple[str | None, str | None]:
    """The error of a denied call, in the same words for every agent, and the message of the rule
    that denied it, if it has one."""
    found = _BY_RULE.match(text or "")
    return (PERMISSION_DENIED, (text or "")[found.end() :] or None) if found else (text, None)


def unavailable_message(name: str) -> str:
    """The error for a tool that the policy removed; agents report it as unknown."""
    return f"{name} is not available under this policy"


def joined_text(listed: object) -> str | None:
    """The texts of a list of parts, one per line; ``None`` if there is no text."""
    return "\n".join(str(part["text"]) for part in as_objects(listed) if "text" in part) or None


def warning(code: str, message: str, phase: str = "stream") -> Error:
    return Error(code, message, recoverable=True, level="warning", phase=phase)


def retrying(message: str) -> Error:
    """A model call failed, and the agent tries again."""
    return Error(
        "retrying", message, recoverable=True, retryable=True, level="warning", phase="request"
    )


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
"""Endings of further field names, such as ``output_path`` and ``base_dir``."""
GLOBS = frozenset({"glob", "globs", "include", "includes", "filepattern", "filefilter", "pattern"})
"""Fields that hold patterns of file names."""
CHANGES = "changes"
"""An object whose keys are paths, or a list of objects that name them."""
MAX_DEPTH = 8

PATCHED = ("*** Add File:", "*** Update File:", "*** Delete File:", "*** Move to:")
"""Beginnings of the lines of a patch that name a file."""

# Kept as text: re compiles them when first needed, which most runs never do.
_DIFFED = r"(?m)^(?:---|\+\+\+) (?:[abciwo]/)?([^\t\r\n]+)"
_RENAMED = r"(?m)^(?:rename|copy) (?:from|to) (.+)$"
_WILDCARD = r"[*?\[{(!|]"
_LEADS_OUT = r"(?:^|[{,(|!])[ \t]*[/~]|(?:^|[/{,(|!])\.\.(?:$|[/},)|])"


def named_paths(name: str, kind: ToolKind, given: Json) -> tuple[str, ...]:
    """Each path once. A glob pattern counts as the path before its first wildcard, or completely
    if it may lead upwards or starts at the root. ``name`` shows whether ``pattern`` is a glob or
    a regular expression."""
    regex = kind == "search" and any(word in name.lower() for word in ("grep", "search", "rg"))
    found = [*_paths_in(given, regex=regex, depth=0)]
    if kind in ("edit", "delete", "move"):
        found += _patched_paths_in(given, depth=0)
    return tuple(dict.fromkeys(found))


def patched_paths(text: str) -> tuple[str, ...]:
    """The files that a patch changes: of the ``*** Update File:`` kind, or a unified diff."""
    found = [*_headers(text), *re.findall(_RENAMED, text)]
    if not found:
        found = [path for path in re.findall(_DIFFED, text) if path != "/dev/null"]
    return tuple(dict.fromkeys(found))


def _headers(text: str) -> Iterator[str]:
    """The paths in the lines ``*** Update File: PATH``. An empty path is one: it is refused."""
    if "*** " not in text:
        return
    for line in text.split("\n"):
        if line.startswith(PATCHED):
            yield line.partition(":")[2].removesuffix("\r").strip(" \t")


def _paths_in(given: Json, *, regex: bool, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(given, list):
        for each in given:
            yield from _paths_in(each, regex=regex, depth=depth + 1)
    elif isinstance(given, dict):
        for key, value in given.items():
            normalized = key.lower().replace("_", "").replace("-", "")
            if normalized in FIELDS or normalized.endswith(ENDINGS):
                yield from _texts(value)
            elif normalized in GLOBS and not (regex and normalized == "pattern"):
                yield from (part for text in _texts(value) for part in _glob_prefix(text))
            elif normalized == CHANGES and isinstance(value, dict):
                yield from value
            yield from _paths_in(value, regex=regex, depth=depth + 1)


def _patched_paths_in(given: Json, depth: int) -> Iterator[str]:
    if isinstance(given, str):
        if next(_headers(given), None) is not None or given.startswith(("--- ", "diff ")):
            yield from patched_paths(given)
    elif depth <= MAX_DEPTH and isinstance(given, dict | list):
        below = given.values() if isinstance(given, dict) else given
        for each in below:
            yield from _patched_paths_in(each, depth + 1)


def _glob_prefix(pattern: str) -> Iterable[str]:
    if re.search(_LEADS_OUT, pattern):
        # Returned as it is: absolute or with .. in it, it is denied in most cases.
        found = re.search(_WILDCARD, pattern)
        head = pattern[: found.start()] if found else pattern
        return (head,) if head.startswith("/") and ".." not in pattern else (f"/{pattern}",)
    found = re.search(_WILDCARD, pattern)
    head = pattern[: found.start()].rpartition("/")[0] if found else pattern
    return (head,) if head else ()


def _texts(value: Json) -> list[str]:
    return [value] if isinstance(value, str) else as_texts(value)
