"""Builds the events that the streams of several agents have in common: tool calls, warnings."""

from __future__ import annotations

from collections.abc import Mapping

from corral.events import Error, ToolKind, ToolUse
from corral.values import Json, as_objects

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
            subject, paths = _subject(given), _path_arguments(given)
    title = f"{name} {subject}" if subject else name
    if parent is None:
        return ToolUse(call_id, name, kind, title, given, paths)
    return ToolUse(call_id, name, kind, title, given, paths, parent=parent)


def _subject(given: Mapping[str, Json]) -> str | None:
    for key in _SUBJECTS:
        if key in given and isinstance(value := given[key], str):
            return value
    return None


def _path_arguments(given: Mapping[str, Json]) -> tuple[str, ...]:
    """The path arguments, each once: some models give one twice."""
    # Most are missing, which ``in`` finds out fastest.
    found = [path for name in PATHS if name in given and isinstance(path := given[name], str)]
    return tuple(found) if len(found) < 2 else tuple(dict.fromkeys(found))


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
