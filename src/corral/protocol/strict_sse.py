"""Server-sent events in exactly the forms in which model vendors send them.

Programs read server-sent events in different ways: one accepts a blank before ``data:``, another a
carriage return as a line end, a third a field without a colon. Where it matters that all of them
would read the same, a stream is read with this module. It accepts

- lines that end with LF or CRLF,
- ``event: NAME`` and ``data: VALUE`` at most once in an event; the blank may be missing,
- ``id``, ``retry`` and comments, which mean nothing for a response and are left out,
- a blank line after each event, and further ones anywhere.

Anything else raises ``UnknownForm``, with what was found. ``protocol/sse`` reads by the standard.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from corral.protocol.sse import MAX_EVENT_SIZE

_LINE = re.compile(rb"(?s:(event|data|id|retry):[ ]?(.*))")
_VALUES = {
    b"event": re.compile(rb"[A-Za-z0-9_.-]{1,100}"),
    b"data": re.compile(rb"[^\x00-\x20][^\x00]*"),
    b"id": re.compile(rb"[^\x00]*"),
    b"retry": re.compile(rb"[0-9]{1,20}"),
}
_SHOWN = 60
"""Bytes of a line that an error shows."""


class UnknownForm(Exception):
    """A stream has a form that programs may read differently."""


class SentEvent(NamedTuple):
    name: str
    """Empty if it has none."""
    data: bytes


KEEP_ALIVE = SentEvent("", b"")
"""A comment, or a blank line: the sender is alive."""


class StrictEvents:
    """Reads one stream, in chunks that are cut anywhere."""

    def __init__(self, limit: int = MAX_EVENT_SIZE) -> None:
        self._limit = limit
        self._line = bytearray()
        self._searched = 0
        self._fields: dict[bytes, bytes] = {}
        self._is_empty = True
        """Whether no line of an event or a comment has come."""

    def receive(self, chunk: bytes) -> list[SentEvent]:
        """The events that are complete now. Raises ``UnknownForm``."""
        self._line += chunk
        found: list[SentEvent] = []
        start = 0
        while (end := self._line.find(b"\n", max(start, self._searched))) >= 0:
            found += self._receive_line(bytes(self._line[start:end]).removesuffix(b"\r"))
            start = end + 1
        del self._line[:start]
        self._searched = len(self._line)
        if self._searched > self._limit:
            raise UnknownForm(f"a line of the stream has more than {self._limit:,} bytes")
        return found

    def end(self) -> list[SentEvent]:
        """The last event, if there is no blank line after it. Raises ``UnknownForm``."""
        rest, self._line, self._searched = bytes(self._line), bytearray(), 0
        found = self._receive_line(rest.removesuffix(b"\r")) if rest else []
        return found if self._is_empty else [*found, *self._receive_line(b"")]

    def _receive_line(self, line: bytes) -> list[SentEvent]:
        if line:
            self._is_empty = False
            self._read_field(line)
            return []
        fields, self._fields, self._is_empty = self._fields, {}, True
        if b"data" in fields:
            return [SentEvent(fields.get(b"event", b"").decode("ascii"), fields[b"data"])]
        if b"event" in fields:
            raise UnknownForm("an event of the stream has a name and no data")
        return [KEEP_ALIVE]

    def _read_field(self, line: bytes) -> None:
        if line.startswith(b":") and b"\r" not in line:
            return
        field = _LINE.fullmatch(line)
        name = field[1] if field else b""
        if field is None or b"\r" in line or not _VALUES[name].fullmatch(field[2]):
            raise UnknownForm(f"the stream has an unusual line: {line[:_SHOWN]!r}")
        if name in self._fields:
            raise UnknownForm(f"an event of the stream has several lines with {name.decode()}")
        self._fields[name] = field[2]
