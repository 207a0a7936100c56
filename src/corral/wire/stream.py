"""Agents that write JSON lines and read nothing back.

``Stream`` turns blocks of lines into items: what a ``translate`` function made of
the frames, and ``log``, ``error`` or ``unknown`` for all the rest. An item is an
event without its envelope, a bare ``str`` for a piece of the answer (the
commonest thing by far, and the cheapest this way), or the agent's ``Finish``.
``clean`` sees every whole line first: secrets are struck out there, before
anything else can see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from corral.content import Cost, Usage
from corral.events import Event
from corral.wire.lines import LIMIT, Lines, Oversized
from corral.wire.oddities import LOG_LIMIT, UNDECODABLE, look_again, oversized

__all__ = ["LOG_LIMIT", "Finish", "Item", "Stream", "Translate"]


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's own last word on a turn. Not an event: the guard makes ``done`` of it."""

    ok: bool
    stop_reason: str | None = None
    usage: Usage = Usage()
    usage_by_model: dict[str, Usage] = {}
    cost: Cost = Cost()
    model: str | None = None
    kind: str | None = None
    """The agent's own name for what went wrong."""
    message: str | None = None
    """What it said of that."""


Item: TypeAlias = str | Event | Finish
Translate: TypeAlias = Callable[[list[Any]], list[Item]]
"""Typed frames → items. A list at a time: a call a frame would cost a tenth of the whole."""


class Stream:
    def __init__(
        self,
        frames: Any,
        translate: Translate,
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = LIMIT,
    ) -> None:
        self._lines = Lines(limit)
        self._clean = clean
        decoder = msgspec.json.Decoder(frames)
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._translate = translate
        self.last_line = b""
        """The last raw line, for an error's facts."""

    def receive(self, chunk: bytes) -> list[Item]:
        return self._items(self._lines.feed(chunk))

    def end(self) -> list[Item]:
        return self._items(self._lines.end())

    def _items(self, blocks: Iterable[bytes | Oversized]) -> list[Item]:
        items: list[Item] = []
        for block in blocks:
            if isinstance(block, Oversized):
                items.append(oversized(block, self._clean))
                continue
            self._translate_block(block if self._clean is None else self._clean(block), items)
        return items

    def _translate_block(self, block: bytes, items: list[Item]) -> None:
        try:
            frames = self._decode_lines(block)
            # The decoder splits at any blank; a frame a line is what was promised.
            if len(frames) == block.count(b"\n") == block.count(b"}\n{") + 1:
                self.last_line = block[block.rfind(b"\n", 0, -1) + 1 :]
                items += self._translate(frames)
                return
        except UNDECODABLE:
            pass  # one of them is odd: again, line by line
        for line in block.split(b"\n"):
            if not line:
                continue
            self.last_line = line
            try:
                frame = self._decode(line)
            except UNDECODABLE:
                frame = look_again(line, self._decode, items.append)
            if frame is not None:
                items += self._translate([frame])
