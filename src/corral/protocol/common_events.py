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


def build_tool_use(
    call_id: str, name: str, given: Json, *, kind: ToolKind, parent: str | None = None
) -> ToolUse:
    arguments = given if isinstance(given, dict) else {}
    subject = None
    for key in _SUBJECTS:
        if key in arguments and isinstance(value := arguments[key], str):
            subject = value
            break
    return ToolUse(
        call_id,
        name,
        kind=kind,
        title=f"{name} {subject}" if subject else name,
        input=given,
        paths=path_arguments(arguments),
        parent=parent,
    )


def unavailable_message(name: str) -> str:
    """The error for a tool that the policy removed; agents report it as unknown."""
    return f"{name} is not available under this policy"


def path_arguments(given: Mapping[str, Json]) -> tuple[str, ...]:
    """The path arguments, each once: some models give one twice."""
    if len(given) == 1:
        ((name, path),) = given.items()
        return (path,) if name in _PATH_NAMES and isinstance(path, str) else ()
    # Most are missing, which ``in`` finds out fastest.
    found = [path for name in PATHS if name in given and isinstance(path := given[name], str)]
    return tuple(found) if len(found) < 2 else tuple(dict.fromkeys(found))


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
