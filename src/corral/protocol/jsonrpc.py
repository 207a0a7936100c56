"""JSON-RPC 2.0 with one message per line: ids, pending calls, replies. No I/O.

``Peer`` is one end of a connection. Bytes from the other side go in, cut anywhere, and come out
as messages in order; bytes to write are returned. No input raises: a line that is not a message
becomes ``Log``, ``Error`` or ``Unknown``, and a reply without a pending call becomes an ``Error``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from corral.events import Error, Log, Unknown
from corral.protocol.ndjson import (
    DECODE_ERRORS,
    MAX_LINE_SIZE,
    SAMPLE_SIZE,
    Lines,
    Oversized,
    decode_malformed,
    is_one_per_line,
    oversized_error,
)
from corral.values import Json, JsonObject, decoder_for

Id: TypeAlias = int | float | str
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CLOSED = -32099
"""Our own code, in the range reserved for implementations: the other side has exited."""


class CallReply(msgspec.Struct, frozen=True):
    """The result of one of our calls."""

    id: int
    method: str
    result: Json


class CallFailure(msgspec.Struct, frozen=True):
    """The error of one of our calls."""

    id: int
    method: str
    code: int
    message: str
    data: Json = None


class IncomingCall(msgspec.Struct, frozen=True):
    """A call from the other side. Reply with ``result``, ``failure`` or ``method_not_found``."""

    id: Id
    method: str
    params: Json


class Notification(msgspec.Struct, frozen=True):
    """A notification from the other side. It gets no reply."""

    method: str
    params: Json


Message: TypeAlias = CallReply | CallFailure | IncomingCall | Notification | Log | Error | Unknown
N = TypeVar("N")


class _ErrorFrame(msgspec.Struct):
    code: int | float = 0
    message: str = ""
    data: Json = None


class _Frame(msgspec.Struct):
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Json = None
    result: Json = None
    error: _ErrorFrame | None = None


class Peer(Generic[N]):
    """One end of a connection. ``common`` is a tagged struct for the most frequent notifications:
    a block of lines is decoded into it in one call, and these frames are returned as they are.
    ``clean`` is applied to every complete line first, to redact secrets."""

    def __init__(
        self,
        common: type[N],
        *,
        clean: Callable[[bytes], bytes] | None = None,
        limit: int = MAX_LINE_SIZE,
    ) -> None:
        self._lines = Lines(limit)
        self._clean = clean
        decoder = decoder_for(common)
        self._common, self._common_lines = decoder.decode, decoder.decode_lines
        self._frame = decoder_for(_Frame).decode
        self._last_id = 0
        self._pending: dict[int, str] = {}
        self.last_line = b""
        """The last raw line, for the facts of an error."""

    @property
    def pending(self) -> dict[int, str]:
        """The calls without a reply: id → method."""
        return dict(self._pending)

    def call(self, method: str, params: object) -> tuple[int, bytes]:
        """The id of the call, and the bytes to write for it."""
        self._last_id += 1
        self._pending[self._last_id] = method
        return self._last_id, _line({"id": self._last_id, "method": method, "params": params})

    def fail_pending(self, message: str, code: int = CLOSED) -> list[CallFailure]:
        """Fail every pending call: the other side has exited."""
        failed = [CallFailure(id, method, code, message) for id, method in self._pending.items()]
        self._pending.clear()
        return failed

    def receive(self, chunk: bytes) -> list[Message | N]:
        return self._messages(self._lines.feed(chunk))

    def end(self) -> list[Message | N]:
        """Read a last line without a newline. Pending calls stay: see ``fail_pending``."""
        return self._messages(self._lines.end())

    def _messages(self, blocks: Iterable[bytes | Oversized]) -> list[Message | N]:
        messages: list[Message | N] = []
        for block in blocks:
            if isinstance(block, Oversized):
                messages.append(oversized_error(block, self._clean))
                continue
            lines = block if self._clean is None else self._clean(block)
            try:
                frames = self._common_lines(lines)
                if is_one_per_line(lines, len(frames)):
                    self.last_line = lines[lines.rfind(b"\n", 0, -1) + 1 :]
                    messages += frames
                    continue
            except DECODE_ERRORS:
                pass  # not only frequent notifications: decode again, line by line
            for line in filter(None, lines.split(b"\n")):
                self.last_line = line
                try:
                    frame: N | _Frame | None = self._decode(line)
                except DECODE_ERRORS:
                    frame = decode_malformed(line, self._decode, messages.append)
                if isinstance(frame, _Frame):
                    messages.append(self._message(frame))
                elif frame is not None:
                    messages.append(frame)
        return messages

    def _decode(self, line: bytes | str) -> N | _Frame:
        try:
            return self._common(line)
        except msgspec.ValidationError:
            frame = self._frame(line)
        if frame.method is UNSET and frame.id is UNSET and frame.error is None:
            raise msgspec.ValidationError("not a message: neither a method nor an id")
        return frame

    def _message(self, frame: _Frame) -> Message:
        if isinstance(frame.method, str):
            if frame.id is UNSET or frame.id is None:
                return Notification(frame.method, frame.params)
            return IncomingCall(frame.id, frame.method, frame.params)
        error = frame.error
        if frame.id is None or frame.id is UNSET:
            # The reply to a line whose id the other side could not read.
            message = error.message if error else "a reply without an id"
            return _stray_reply(f"the agent rejected one of our lines: {message}")
        id = _our_id(frame.id)
        method = self._pending.pop(id, None)
        if method is None:
            is_repeated = 0 < id <= self._last_id
            what = "answered call {} twice" if is_repeated else "answered unknown call {}"
            return _stray_reply("the agent " + what.format(repr(frame.id)))
        if error is not None:
            return CallFailure(id, method, int(error.code), error.message, error.data)
        return CallReply(id, method, frame.result)


def notification(method: str, params: object) -> bytes:
    return _line({"method": method, "params": params})


def result(id: Id, value: object) -> bytes:
    return _line({"id": id, "result": value})


def failure(id: Id, code: int, message: str, data: Json = None) -> bytes:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _line({"id": id, "error": error})


def method_not_found(id: Id, method: str) -> bytes:
    return failure(id, METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})


_encode = msgspec.json.Encoder().encode


def _line(members: dict[str, object]) -> bytes:
    return _encode({"jsonrpc": "2.0", **members}) + b"\n"


def _our_id(id: Id) -> int:
    """Our ids are integers. Some agents send them back as text or as 1.0. Returns -1, which is
    never the id of a call, for anything else."""
    if isinstance(id, str):
        return int(id) if len(id) < 20 and id.isascii() and id.isdecimal() else -1
    return int(id) if isinstance(id, int) or id.is_integer() else -1


def _stray_reply(message: str) -> Error:
    return Error(
        "stray_reply", message[:SAMPLE_SIZE], recoverable=True, level="warning", phase="stream"
    )
