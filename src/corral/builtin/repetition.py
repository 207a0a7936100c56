"""Detects that the model repeats the same tool calls."""

from __future__ import annotations

from collections import deque

import msgspec

from corral.messages import ToolCall

WATCHED = 10
"""Calls that must repeat with one period to count as a loop."""

ADVICE = (
    "You have made the same tool calls over and over without getting further. Stop, think about"
    " why they do not help, and do something else; if the task cannot be done, say so."
)


class Repetition:
    """The signatures of the last calls."""

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=WATCHED)

    def repeats(self, call: ToolCall) -> bool:
        """Whether the last calls, including this one, repeat with a period of 1, 2 or 3. After
        it was reported, counting starts again."""
        self._last.append(
            msgspec.json.encode([call.name, call.arguments, call.raw], order="sorted")
        )
        last = list(self._last)
        if len(last) < WATCHED:
            return False
        for period in (1, 2, 3):
            if all(last[at] == last[at - period] for at in range(period, WATCHED)):
                self._last.clear()
                return True
        return False
