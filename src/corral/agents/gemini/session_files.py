"""The files in which the Gemini CLI stores conversations.

Their names contain the minute in which the conversation started. A conversation that is loaded
in the same minute is destroyed: the CLI writes a new, empty conversation to the same name. So
its file is renamed to an earlier minute first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

FILES = ".gemini/tmp/*/chats/session-*-{}.jsonl"
_MINUTE = "session-%Y-%m-%dT%H-%M-"


def rename_to_earlier(names: Sequence[str], session_id: str, now: float) -> dict[str, str]:
    """Files of this conversation that must not be loaded now → a new name for each."""
    rest = f"{session_id[:8]}.jsonl"
    taken, renamed = {*names}, dict[str, str]()
    for name in names:
        earlier, free = now, name
        if not name.endswith(rest) or name < _name(now, rest):
            continue
        while free in taken:
            earlier -= 60
            free = _name(earlier, rest)
        taken.add(free)
        renamed[name] = free
    return renamed


def _name(at: float, rest: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(_MINUTE) + rest
