"""The files in which the Gemini CLI keeps conversations.

They are named by the minute in which they were begun. A conversation that is loaded in that
very minute is destroyed: the CLI writes a fresh beginning to the same name. So one is given
the name of a minute before.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

_MINUTE = "%Y-%m-%dT%H-%M"


def make_older(home: str, session_id: str) -> None:
    """See that the conversation may be loaded now. Raises ``OSError``."""
    this = datetime.now(UTC).replace(second=0, microsecond=0)
    end = f"-{session_id[:8]}.jsonl"
    for file in [*Path(home, ".gemini", "tmp").glob(f"*/chats/session-*{end}")]:
        minute = file.name.removeprefix("session-").removesuffix(end)
        if minute < this.strftime(_MINUTE):
            continue
        free, earlier = file, this
        while free.exists():
            earlier -= timedelta(minutes=1)
            free = file.with_name(f"session-{earlier:{_MINUTE}}{end}")
        file.rename(free)
