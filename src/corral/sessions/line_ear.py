"""stderr, heard line by line by somebody who may be gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable

LONGEST = 65_536


class LineEar:
    """Chunks → lines. Its listener is held weakly: the loop holds this."""

    def __init__(self, hear: weakref.WeakMethod[Callable[[str], None]]) -> None:
        self._hear = hear
        self._half = b""

    def end(self) -> None:
        """The last line had no newline."""
        if self._half:
            self.feed(b"\n")

    def feed(self, chunk: bytes) -> None:
        *lines, self._half = (self._half + chunk).split(b"\n")
        self._half = self._half[-LONGEST:]
        hear = self._hear()
        if hear is not None:
            for line in lines:
                hear(line.decode("utf-8", "replace"))
