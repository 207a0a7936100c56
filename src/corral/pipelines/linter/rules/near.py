"""Did you mean …?"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 100
"""Names that are compared in one look at a pipeline. Each costs a comparison with every name
that is known: a file with thousands of slips still gets its findings at once."""
AMONG = 1000
LONGEST = 60


class Nearest:
    """The nearest of the names that are known, if one is near."""

    def __init__(self, known: Iterable[str], cutoff: float = 0.6) -> None:
        self._known = list(known)[:AMONG]
        self._cutoff = cutoff
        self._found: dict[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def __call__(self, name: str) -> str | None:
        if name not in self._found:
            if len(self._found) >= MOST or len(name) > LONGEST:
                return None
            near = get_close_matches(name, self._known, 1, self._cutoff)
            self._found[name] = near[0] if near else None
        return self._found[name]

    def fix(self, name: str, *, listed: bool = True) -> str | None:
        """What to do about a name that is unknown."""
        near = self(name)
        names = f"Known are {', '.join(self._known)}." if listed else ""
        return f"Did you mean {near}? {names}".strip() if near else names or None
