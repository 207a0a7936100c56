"""The files in which the Gemini CLI keeps conversations.

They are named by the minute in which they were begun. A conversation that is loaded in that
very minute is destroyed: the CLI writes a fresh beginning to the same name. So one is given
the name of a minute before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

FILES = ".gemini/tmp/*/chats/session-*-{}.jsonl"
_MINUTE = "session-%Y-%m-%dT%H-%M-"


def rename_to_earlier(names: Sequence[str], session_id: str, now: float) -> dict[str, str]:
    """Those of this conversation's files that may not be loaded now → another name for each."""
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
