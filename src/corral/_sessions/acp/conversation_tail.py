"""What one prompt adds to the files in which an agent stores its conversation."""

from __future__ import annotations

import contextlib
from pathlib import Path

from corral._agents.spec import AcpTransport
from corral._sessions.store import conversation_files
from corral._system import fs

MOST_BYTES = 16 * 1024**2
"""Read from one file: the files are the agent's."""


class ConversationTail:
    """The end of the files, from what was there when this was made. Blocking."""

    def __init__(self, transport: AcpTransport, home: Path, session: str) -> None:
        self._transport, self._home, self._session = transport, home, session
        self._sizes: dict[str, int] = {}
        for file in self._files():
            with contextlib.suppress(OSError):
                self._sizes[file.name] = fs.status(file).st_size

    def read(self) -> bytes:
        """The complete lines since the last call. What cannot be read is left out."""
        lines = b""
        for file in self._files():
            start = self._sizes.get(file.name, 0)
            data = fs.read_from(file, start, MOST_BYTES)
            complete = data[: data.rfind(b"\n") + 1]
            self._sizes[file.name] = start + len(complete)
            lines += complete
        return lines

    def _files(self) -> list[Path]:
        return conversation_files(self._transport, self._home, self._session)
