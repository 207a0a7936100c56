"""What was said, in memory and on disk, and how it shrinks when it must.

On disk it is a message a line, written as they come: a run that is killed loses
at most the message it was writing.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.errors import ResumeLost, StorageFailed
from corral.messages import Audio, Document, Image, Message, Part, ToolResult

NAME = "history.ndjson"
CUT_OFF = "cut off: the run ended before this call had a result"


class History:
    """The messages of one conversation, without its system prompt."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path, what is there is read, and what comes is written."""
        self._path = path
        self.messages: list[Message] = []
        if path is not None and path.exists():
            self.messages = _read(path)

    def add(self, message: Message) -> None:
        """Raises ``StorageFailed`` where it cannot be kept."""
        self.messages.append(message)
        if self._path is None:
            return
        line = msgspec.json.encode(_portable(message)) + b"\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageFailed(f"the history cannot be kept: {error.strerror}") from error

    def mend(self) -> None:
        """Give every call of the last answer a result: no vendor takes one without."""
        if not self.messages or self.messages[-1].role != "assistant":
            return
        open_calls = self.messages[-1].tool_calls
        if open_calls:
            results = [
                ToolResult(call.id, CUT_OFF, is_error=True, name=call.name) for call in open_calls
            ]
            self.add(Message("tool", tuple(results)))

    def shrink(self) -> bool:
        """Forget the older half of what lies between the first words of the user and now, in
        memory alone. False where nothing can go."""
        kept = shrunk(self.messages)
        if len(kept) == len(self.messages):
            return False
        self.messages = kept
        return True


def shrunk(messages: Sequence[Message]) -> list[Message]:
    """The first user turn, and the newer half of the rest; a call and its results stay or go
    together."""
    first = next((at for at, m in enumerate(messages) if m.role == "user"), 0)
    groups: list[list[Message]] = []
    for message in messages[first + 1 :]:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    newer = groups[(len(groups) + 1) // 2 :]
    return [*messages[: first + 1], *(message for group in newer for message in group)]


def _read(path: Path) -> list[Message]:
    messages: list[Message] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ResumeLost(f"the history cannot be read: {error.strerror}") from error
    for line in lines:
        # A line that was cut when its writer was killed is no message.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            messages.append(msgspec.json.decode(line, type=Message))
    return messages


def _portable(message: Message) -> Message:
    """Bytes as ``data:`` URLs, which are read back the same."""
    if not any(isinstance(part, Image | Audio | Document) for part in message.content):
        return message
    return replace(message, content=tuple(_as_text(part) for part in message.content))


def _as_text(part: Part) -> Part:
    if isinstance(part, Image | Audio | Document) and isinstance(part.source, bytes):
        kind = part.media_type or "application/octet-stream"
        return replace(part, source=f"data:{kind};base64,{b64encode(part.source).decode()}")
    return part
