"""Agents that write one JSON object per line (NDJSON), and what their lines become.

``Lines`` splits chunks of bytes into blocks of complete lines, in linear time and bounded memory.
Chunks may be cut anywhere. Only ``\\n`` ends a line (U+2028 and similar characters are ordinary
text in JSON). A block holds all lines that a chunk completed, so that a decoder can read them in
one call. asyncio's ``readline`` is not used: it stops at 64 KiB and scans the buffer repeatedly.

``JsonLines`` decodes them into frames. ``NdjsonStream`` turns these into raw events: what a
``translate`` function makes of the frames, and ``log``, ``error`` or ``unknown`` for everything
else. A raw event is an event without its envelope, a ``str`` for a piece of the answer (the most
frequent and cheapest form), or a ``TurnEnd``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import UnionType
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from corral.events import Error, Event, Log, Unknown
from corral.values import Cost, Json, Usage, decoder_for

MAX_LINE_SIZE = 64 * 1024 * 1024
"""Bytes of the longest accepted line: screenshots in base64 reach tens of megabytes."""
SAMPLE_SIZE = 200
HEAD_SIZE = 8192
"""Bytes kept of a dropped line: secrets are redacted in them before they are cut further."""


class Oversized(msgspec.Struct, frozen=True, gc=False):
    """A line longer than the limit: dropped, except for its size and its beginning."""

    size: int
    sample: bytes


class Lines:
    """The splitter of one stream."""

    def __init__(self, limit: int = MAX_LINE_SIZE) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0
        self._head = b""
        """The beginning of the oversized line that is being skipped."""

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """What the chunk completed, in order: blocks of lines, each with its newline."""
        last = chunk.rfind(b"\n") + 1
        if not last:
            self._buffer_piece(chunk)
            return []
        done: list[bytes | Oversized] = []
        if self._pending or self._head:
            first = chunk.find(b"\n") + 1
            self._buffer_piece(chunk[:first])
            done.append(self._flush())
            if first < last:
                self._add_block(chunk[first:last], done)
        else:
            self._add_block(chunk if last == len(chunk) else chunk[:last], done)
        if last < len(chunk):
            self._buffer_piece(chunk[last:])
        return done

    def end(self) -> list[bytes | Oversized]:
        """At the end of the stream: a last line without a newline."""
        return [self._flush()] if self._size else []

    def _buffer_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size - piece.endswith(b"\n") <= self._limit:
            self._pending.append(piece)
        elif len(self._head) < HEAD_SIZE:
            self._head = b"".join([self._head, *self._pending, piece])[:HEAD_SIZE]
            self._pending.clear()

    def _flush(self) -> bytes | Oversized:
        if self._head:
            line: bytes | Oversized = Oversized(self._size, self._head.removesuffix(b"\n"))
        else:
            line = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        self._head = b""
        return line

    def _add_block(self, block: bytes, done: list[bytes | Oversized]) -> None:
        if len(block) <= self._limit:
            done.append(block)
            return
        for line in block.split(b"\n")[:-1]:
            long = len(line) > self._limit
            done.append(Oversized(len(line) + 1, line[:HEAD_SIZE]) if long else line + b"\n")


def is_one_per_line(block: bytes, count: int) -> bool:
    """Whether these ``count`` JSON objects, which ``decode_lines`` found in a block of lines, have
    one line each. The decoder splits at any whitespace, and at none: ``{} {}`` and ``{}{}`` are two
    objects for it, and an object over two lines is one."""
    if count == 1:
        return block.find(b"\n") == len(block) - 1
    newlines = len(block) - len(block.replace(b"\n", b""))  # twice as fast as count()
    if newlines != count:
        return False
    # "}\n{" is inside no JSON: these newlines are between two objects. Most lines start with the
    # same key, and a longer text is found faster.
    between = b"}\n{"
    return block.count(between + block[1:9]) == count - 1 or block.count(between) == count - 1


def frame_types(
    shape: type[msgspec.Struct], names: Iterable[str]
) -> dict[type[msgspec.Struct], str]:
    """One frame type for each value that ``type`` may have in a line, with that value."""
    return {
        msgspec.defstruct(
            name.title().replace(".", ""), [], bases=(shape,), tag=name, tag_field="type"
        ): name
        for name in names
    }


def union_of(*kinds: Iterable[type[msgspec.Struct]]) -> object:
    """The union of these types, for a decoder."""
    first, *rest = chain(*kinds)
    union: type[msgspec.Struct] | UnionType = first
    for kind in rest:
        union = union | kind
    return union


MAX_LOG_LENGTH = 4096
"""Characters of a line that is not JSON; the rest is cut off."""
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that a decoder raises for malformed bytes."""

# Kept as text: re compiles them when first needed, which most runs never do.
_TERMINAL = r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])"
_SURROGATE = rb"\\u[dD][89a-fA-F]"

F = TypeVar("F")


def decode_malformed(
    line: bytes, decode: Callable[[str], F], note: Callable[[Log | Error | Unknown], object]
) -> F | None:
    """Decode a malformed line after repairing it: without terminal sequences, byte order mark and
    lone surrogates. Otherwise ``None``, and an event for the line is passed to ``note``."""
    text = re.sub(_TERMINAL, "", line.decode("utf-8", "replace")).strip("\ufeff \t\r\n")
    if not text:
        return None
    if text[0] not in "{[":
        note(Log(text[:MAX_LOG_LENGTH]))
        return None
    repaired = _without_surrogates(text) if re.search(_SURROGATE, line) else text
    try:
        raw: Json = msgspec.json.decode(repaired)
    except (msgspec.MsgspecError, RecursionError) as error:
        message = f"a line of the agent's output is not JSON: {error}: {text[:SAMPLE_SIZE]}"
        facts: dict[str, Json] = {"sample": text[:SAMPLE_SIZE]}
        note(Error("malformed_line", message, recoverable=True, phase="stream", facts=facts))
        return None
    try:
        return decode(repaired)
    except msgspec.MsgspecError:
        note(Unknown(raw))
        return None


def oversized_error(line: Oversized, clean: Callable[[bytes], bytes] | None = None) -> Error:
    head = line.sample if clean is None else clean(line.sample)
    sample = head[:SAMPLE_SIZE].decode("utf-8", "replace")
    return Error(
        code="oversized_line",
        message=f"a line of {line.size:,} bytes exceeds the limit and was dropped: {sample}",
        recoverable=True,
        phase="stream",
        facts={"sample": sample, "size": line.size},
    )


def _without_surrogates(text: str) -> str:
    """The JSON with U+FFFD in place of lone surrogates, which JavaScript programs produce."""
    import json

    try:
        plain = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent ended the turn. Not an event: the event normalizer makes ``done`` of it."""

    ok: bool
    stop_reason: str | None = None
    usage: Usage = Usage()
    usage_by_model: dict[str, Usage] = {}
    cost: Cost = Cost()
    model: str | None = None
    kind: str | None = None
    """The agent's own name for the failure."""
    message: str | None = None
    """The agent's description of the failure."""


RawEvent: TypeAlias = str | Event | TurnEnd
Translate: TypeAlias = Callable[[list[Any]], list[RawEvent]]
"""Frames → raw events, a list at a time: one call per frame would cost a tenth more. ``Any``: each
agent has its own type of frames, which the decoder guarantees."""
Note: TypeAlias = Callable[[Log | Error | Unknown], None]
"""Takes the event for a line that is no frame."""


class JsonLines(Generic[F]):
    """The frames of one stream. ``common`` is the type of most lines: a block of them is decoded in
    one call. ``decode`` reads a line of any type; without it, all are ``common``. ``clean`` is
    applied to every complete line first: it redacts secrets before anything else sees them."""

    def __init__(
        self,
        common: object,
        decode: Callable[[bytes | str], F] | None = None,
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = MAX_LINE_SIZE,
    ) -> None:
        self._lines = Lines(limit)
        self._clean = clean
        decoder: msgspec.json.Decoder[F] = decoder_for(common)
        self._decode_lines = decoder.decode_lines
        self._decode = decode or decoder.decode
        self.last_line: bytes = b""
        """The last raw line, for the facts of an error."""

    def receive(self, chunk: bytes, note: Note) -> Iterator[list[F]]:
        """The frames that the chunk completes, in lists, and in order with what ``note`` gets."""
        return self._frames(self._lines.feed(chunk), note)

    def end(self, note: Note) -> Iterator[list[F]]:
        """Read a last line without a newline."""
        return self._frames(self._lines.end(), note)

    def _frames(self, blocks: Iterable[bytes | Oversized], note: Note) -> Iterator[list[F]]:
        for block in blocks:
            if isinstance(block, Oversized):
                note(oversized_error(block, self._clean))
                continue
            lines = block if self._clean is None else self._clean(block)
            try:
                frames = self._decode_lines(lines)
                if is_one_per_line(lines, len(frames)):
                    self.last_line = lines[lines.rfind(b"\n", 0, -1) + 1 : -1]
                    yield frames
                    continue
            except DECODE_ERRORS:
                pass  # one line is malformed or uncommon: decode again, each for itself
            for line in filter(None, lines.split(b"\n")):
                self.last_line = line
                try:
                    frame: F | None = self._decode(line)
                except DECODE_ERRORS:
                    frame = decode_malformed(line, self._decode, note)
                if frame is not None:
                    yield [frame]


class NdjsonStream:
    """The raw events of one stream. ``frames`` is the union of the frame types."""

    def __init__(
        self,
        frames: object,
        translate: Translate,
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = MAX_LINE_SIZE,
    ) -> None:
        self.lines: JsonLines[Any] = JsonLines(frames, clean=clean, limit=limit)
        self._translate = translate

    def receive(self, chunk: bytes) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frames in self.lines.receive(chunk, items.append):
            items += self._translate(frames)
        return items

    def end(self) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frames in self.lines.end(items.append):
            items += self._translate(frames)
        return items
