"""JSON-RPC 2.0, a line a message: ids, pending calls, replies. It cannot do I/O.

``Peer`` is one end of one conversation. What the other side writes goes in as bytes
cut anywhere and comes out as messages, in order; what is to be written is
returned as bytes. No line is a crash: what is no message is ``Log``, ``Error`` or
``Unknown``, and a reply that nobody waits for is an ``Error`` that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from corral.events import Error, Json, Log, Unknown
from corral.protocol.lines import LIMIT, SAMPLE, Lines, Oversized
from corral.protocol.ndjson import UNDECODABLE, look_again, oversized

Id: TypeAlias = int | float | str
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CLOSED = -32099
"""Ours, in the range left to implementations: the other side is gone."""


class Reply(msgspec.Struct, frozen=True):
    """The answer to a call of ours."""

    id: int
    method: str
    result: Json


class Failure(msgspec.Struct, frozen=True):
    """The error that a call of ours ended with."""

    id: int
    method: str
    code: int
    message: str
    data: Json = None


class Call(msgspec.Struct, frozen=True):
    """What the other side asks; it waits for ``result``, ``failure`` or ``method_not_found``."""

    id: Id
    method: str
    params: Json


class Note(msgspec.Struct, frozen=True):
    """What the other side tells; no answer is due."""

    method: str
    params: Json


Message: TypeAlias = Reply | Failure | Call | Note | Log | Error | Unknown
N = TypeVar("N")


class _ErrorFrame(msgspec.Struct):
    code: int | float = 0
    message: str = ""
    data: Any = None


class _Frame(msgspec.Struct):
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Any = None
    result: Any = None
    error: _ErrorFrame | None = None


class Peer(Generic[N]):
    """One end. ``common`` is a tagged struct for the notifications that come by the
    hundred thousand: a block of lines is decoded into it in one call, and those
    frames are handed on as they are. ``clean`` sees every whole line first."""

    def __init__(
        self,
        common: type[N],
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = LIMIT,
    ) -> None:
        self._lines = Lines(limit)
        self._clean = clean
        decoder = msgspec.json.Decoder(common)
        self._common, self._common_lines = decoder.decode, decoder.decode_lines
        self._frame = msgspec.json.Decoder(_Frame).decode
        self._last_id = 0
        self._pending: dict[int, str] = {}
        self.last_line = b""
        """The last raw line, for an error's facts."""

    @property
    def pending(self) -> dict[int, str]:
        """The calls that wait for their reply: id → method."""
        return dict(self._pending)

    def call(self, method: str, params: object) -> tuple[int, bytes]:
        """The id of the call, and what to write for it."""
        self._last_id += 1
        self._pending[self._last_id] = method
        return self._last_id, _line({"id": self._last_id, "method": method, "params": params})

    def fail_pending(self, message: str, code: int = CLOSED) -> list[Failure]:
        """Every call that still waits, failed: the other side is gone."""
        failed = [Failure(id, method, code, message) for id, method in self._pending.items()]
        self._pending.clear()
        return failed

    def receive(self, chunk: bytes) -> list[Message | N]:
        return self._messages(self._lines.feed(chunk))

    def end(self) -> list[Message | N]:
        """A last line without its newline. Pending calls stay: see ``fail_pending``."""
        return self._messages(self._lines.end())

    def _messages(self, blocks: Iterable[bytes | Oversized]) -> list[Message | N]:
        found: list[Message | N] = []
        for block in blocks:
            if isinstance(block, Oversized):
                found.append(oversized(block, self._clean))
            else:
                self._read(block if self._clean is None else self._clean(block), found)
        return found

    def _read(self, block: bytes, found: list[Message | N]) -> None:
        try:
            frames = self._common_lines(block)
            # The decoder splits at any blank; a frame a line is what was promised.
            if len(frames) == block.count(b"\n") == block.count(b"}\n{") + 1:
                self.last_line = block[block.rfind(b"\n", 0, -1) + 1 :]
                found += frames
                return
        except UNDECODABLE:
            pass  # something rarer is among them: again, line by line
        for line in block.split(b"\n"):
            if not line:
                continue
            self.last_line = line
            try:
                frame: N | _Frame | None = self._decode(line)
            except UNDECODABLE:
                frame = look_again(line, self._decode, found.append)
            if isinstance(frame, _Frame):
                found.append(self._message(frame))
            elif frame is not None:
                found.append(frame)

    def _decode(self, line: bytes | str) -> N | _Frame:
        try:
            return self._common(line)
        except msgspec.ValidationError:
            frame = self._frame(line)
        if frame.method is UNSET and frame.id is UNSET and frame.error is None:
            raise msgspec.ValidationError("no message: neither a method nor an id")
        return frame

    def _message(self, frame: _Frame) -> Message:
        if isinstance(frame.method, str):
            if frame.id is UNSET or frame.id is None:
                return Note(frame.method, frame.params)
            return Call(frame.id, frame.method, frame.params)
        return self._settle(frame)

    def _settle(self, frame: _Frame) -> Message:
        error = frame.error
        if frame.id is None or frame.id is UNSET:
            # How a peer answers a line of which it could not even read the id.
            said = error.message if error else "a reply without an id"
            return _stray(f"the agent rejected a message: {said}")
        id = _as_ours(frame.id)
        method = self._pending.pop(id, None)
        if method is None:
            again = 0 < id <= self._last_id
            what = "answered call {} again" if again else "answered call {}, which nobody made"
            return _stray("the agent " + what.format(repr(frame.id)))
        if error is not None:
            return Failure(id, method, int(error.code), error.message, error.data)
        return Reply(id, method, frame.result)


def note(method: str, params: object) -> bytes:
    return _line({"method": method, "params": params})


def result(id: Id, value: object) -> bytes:
    return _line({"id": id, "result": value})


def failure(id: Id, code: int, message: str, data: Json = None) -> bytes:
    error: dict[str, Json] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _line({"id": id, "error": error})


def method_not_found(id: Id, method: str) -> bytes:
    return failure(id, METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})


_encode = msgspec.json.Encoder().encode


def _line(members: dict[str, object]) -> bytes:
    return _encode({"jsonrpc": "2.0", **members}) + b"\n"


def _as_ours(id: Id) -> int:
    """Our ids are integers. Some peers send them back as text, or as 1.0; nothing that is
    merely close to one of ours counts. -1 is never ours."""
    if isinstance(id, str):
        return int(id) if len(id) < 20 and id.isascii() and id.isdecimal() else -1
    return int(id) if isinstance(id, int) or id.is_integer() else -1


def _stray(message: str) -> Error:
    return Error("stray_reply", message[:SAMPLE], recoverable=True, level="warning", phase="stream")
