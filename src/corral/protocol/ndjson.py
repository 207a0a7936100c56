"""Agents that write JSON lines and read nothing back.

``Stream`` turns blocks of lines into items: what a ``translate`` function made of
the frames, and ``log``, ``error`` or ``unknown`` for all the rest. An item is an
event without its envelope, a bare ``str`` for a piece of the answer (the
commonest thing by far, and the cheapest this way), or the agent's ``Finish``.
``clean`` sees every whole line first: secrets are struck out there, before
anything else can see them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec

from corral.events import Error, Event, Json, Log, Unknown
from corral.protocol.lines import LIMIT, SAMPLE, Lines, Oversized
from corral.values import Cost, Usage


def named(shape: type[msgspec.Struct], names: Iterable[str]) -> dict[type[msgspec.Struct], str]:
    """For each name that a line has as its ``type``, a type of its own, with that name."""
    return {
        msgspec.defstruct(
            name.title().replace(".", ""), [], bases=(shape,), tag=name, tag_field="type"
        ): name
        for name in names
    }


def one_of(*kinds: Iterable[type[msgspec.Struct]]) -> Any:
    """Any of these, for a decoder."""
    whole: Any = None
    for kind in (kind for some in kinds for kind in some):
        whole = kind if whole is None else whole | kind
    return whole


LOG_LIMIT = 4096
"""Characters of a line that is not JSON; a megabyte of banner helps nobody."""
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises, whatever the bytes."""

# Texts: re compiles them when first needed, which most runs never do.
_TERMINAL = r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])"
_SURROGATE = rb"\\u[dD][89a-fA-F]"

F = TypeVar("F")


def look_again(
    line: bytes, decode: Callable[[str], F], note: Callable[[Log | Error | Unknown], Any]
) -> F | None:
    """The frame behind the line, once mended; else ``None``, and what it was is noted."""
    text = re.sub(_TERMINAL, "", line.decode("utf-8", "replace")).strip("\ufeff \t\r\n")
    if not text:
        return None
    if text[0] not in "{[":
        note(Log(text[:LOG_LIMIT]))
        return None
    mended = _without_surrogates(text) if re.search(_SURROGATE, line) else text
    try:
        raw: Json = msgspec.json.decode(mended)
    except (msgspec.MsgspecError, RecursionError) as error:
        note(_malformed(str(error), text))
        return None
    try:
        return decode(mended)
    except msgspec.MsgspecError:
        note(Unknown(raw))
        return None


def oversized(line: Oversized, clean: Callable[[bytes], bytes] | None = None) -> Error:
    head = line.sample if clean is None else clean(line.sample)
    sample = head[:SAMPLE].decode("utf-8", "replace")
    return Error(
        code="oversized_line",
        message=f"a line of {line.size:,} bytes is over the limit and was dropped: {sample}",
        recoverable=True,
        phase="stream",
        facts={"sample": sample, "size": line.size},
    )


def _without_surrogates(text: str) -> str:
    """JSON whose strings hold half a character (JavaScript cuts them so), with U+FFFD there."""
    try:
        plain = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _malformed(message: str, text: str) -> Error:
    return Error(
        code="malformed_line",
        message=f"a line of the agent's output is not JSON: {message}: {text[:SAMPLE]}",
        recoverable=True,
        phase="stream",
        facts={"sample": text[:SAMPLE]},
    )


__all__ = ["LOG_LIMIT", "RawEvent", "Stream", "Translate", "TurnEnd"]


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
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


RawEvent: TypeAlias = str | Event | TurnEnd
Translate: TypeAlias = Callable[[list[Any]], list[RawEvent]]
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

    def receive(self, chunk: bytes) -> list[RawEvent]:
        return self._items(self._lines.feed(chunk))

    def end(self) -> list[RawEvent]:
        return self._items(self._lines.end())

    def _items(self, blocks: Iterable[bytes | Oversized]) -> list[RawEvent]:
        items: list[RawEvent] = []
        for block in blocks:
            if isinstance(block, Oversized):
                items.append(oversized(block, self._clean))
                continue
            self._translate_block(block if self._clean is None else self._clean(block), items)
        return items

    def _translate_block(self, block: bytes, items: list[RawEvent]) -> None:
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
