"""A tool's call as events tell it, whatever an agent calls its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from corral.events import Json, ToolKind, ToolUse

PATHS = ("file_path", "filePath", "notebook_path", "dir_path", "path")
"""Names under which tools are told of a file or a folder."""
_SUBJECTS = ("command", *PATHS, "pattern", "url", "query", "description")
"""What a call is about; the first that is there."""


def call(
    call_id: str, name: str, given: Json, *, kind: ToolKind, parent: str | None = None
) -> ToolUse:
    told = table(given)
    subject = next((told[key] for key in _SUBJECTS if isinstance(told.get(key), str)), None)
    return ToolUse(
        call_id,
        name,
        kind=kind,
        title=f"{name} {subject}" if subject else name,
        input=given,
        paths=paths(told),
        parent=parent,
    )


def hidden(name: str) -> str:
    """Why a call failed of a tool that the policy takes away: agents say that it is unknown."""
    return f"{name} is not available under this policy"


def paths(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Each once, though some models name it twice."""
    return tuple(dict.fromkeys(given[n] for n in PATHS if isinstance(given.get(n), str)))


def table(given: object) -> dict[str, Any]:
    """A tool's arguments; empty where they are none."""
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def tables(listed: object) -> list[dict[str, Any]]:
    """The objects in a list; nothing where it is none."""
    found = cast("list[object]", listed) if isinstance(listed, list) else []
    return [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]


def texts(listed: object) -> str | None:
    """What a list of parts says, a line each; ``None`` where that is nothing."""
    return "\n".join(str(part["text"]) for part in tables(listed) if "text" in part) or None
