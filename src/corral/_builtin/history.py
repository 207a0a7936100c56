"""The messages of a conversation, in memory and on disk, and how older ones are dropped.

On disk there is one message per line, written immediately: a killed run loses at most the message
that it was writing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._system import fs
from corral.errors import ResumeLost, StorageFailed
from corral.messages import Audio, Document, Image, Message, Part, ToolCall, ToolResult
from corral.values import decode_as

NAME = "history.ndjson"
CUT_OFF = "cut off: the run ended before this call had a result"


class History:
    """The messages of one conversation, without its system prompt."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        keep: bool = True,
        clean: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """With a path, the stored messages are read; with ``keep``, new ones are appended after
        ``clean`` has redacted them."""
        self._path = path if keep else None
        self._clean = clean
        self._ends_mid_line = False
        self._prompt: Message | None = None
        self.messages: list[Message] = []
        self.was_stored: bool = path is not None and fs.exists(path)
        """Whether there was a file with messages."""
        if path is not None and self.was_stored:
            self.messages, self._ends_mid_line = _read(path)

    def begin(self, prompt: Message) -> None:
        """Start a turn. Its prompt is never dropped while the turn runs."""
        self.close_open_calls()
        self._prompt = prompt
        self.add(prompt)

    def add(self, message: Message) -> None:
        """Append a message. Raises ``StorageFailed`` if it cannot be written."""
        self.messages.append(message)
        if self._path is None:
            return
        # Bytes as ``data:`` URLs, which are read back the same.
        content: list[Part] = []
        for part in message.content:
            if isinstance(part, Image | Audio | Document) and isinstance(part.source, bytes):
                kind = part.media_type or "application/octet-stream"
                url = f"data:{kind};base64,{b64encode(part.source).decode()}"
                content.append(replace(part, source=url))
            else:
                content.append(part)
        line = self._clean(msgspec.json.encode(replace(message, content=tuple(content)))) + b"\n"
        # Appended to an incomplete line, the message would be lost with that line.
        try:
            fs.append(self._path, b"\n" + line if self._ends_mid_line else line)
        except OSError as error:
            raise StorageFailed(
                f"the history cannot be written to {self._path}: {error.strerror}",
                hint="Free some space, or set CORRAL_HOME to a folder that can be written.",
            ) from error
        self._ends_mid_line = False

    def close_open_calls(self) -> None:
        """Give every call of the last answer a result: vendors reject a call without one."""
        if not self.messages or self.messages[-1].role != "assistant":
            return
        if open_calls := self.messages[-1].tool_calls:
            self.add(missing_results(open_calls))

    def shrink(self) -> bool:
        """Drop the older half of the messages between the first prompt and the current one, in
        memory only. False if nothing can be dropped."""
        remaining = shrink_messages(self.messages, self._prompt)
        if len(remaining) == len(self.messages):
            return False
        self.messages = remaining
        return True


def shrink_messages(messages: Sequence[Message], prompt: Message | None = None) -> list[Message]:
    """The first user message, the current ``prompt``, and the newer half of the rest. A call and
    its results are kept or dropped together."""
    first = next((at for at, m in enumerate(messages) if m.role == "user"), 0)
    groups: list[list[Message]] = []
    for message in messages[first + 1 :]:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    older = sum(group[0] is not prompt for group in groups)
    to_drop = (older + 1) // 2
    remaining = list(messages[: first + 1])
    for group in groups:
        if to_drop and group[0] is not prompt:
            to_drop -= 1
        else:
            remaining += group
    return remaining


def _read(path: Path) -> tuple[list[Message], bool]:
    """The messages, and whether the last line is incomplete."""
    messages: list[Message] = []
    try:
        lines = fs.read_bytes(path).split(b"\n")
    except OSError as error:
        raise ResumeLost(f"the history {path} cannot be read: {error.strerror}") from error
    for line in lines:
        # A line that was cut when its writer was killed is skipped.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            messages.append(decode_as(line, Message))
    # Add missing results for all calls except those of the last answer, and drop results without a
    # call: a line in the middle of the file may be lost.
    paired: list[Message] = []
    for message in messages:
        before = paired[-1] if paired else None
        calls = before.tool_calls if before is not None and before.role == "assistant" else ()
        if message.role == "tool" and not calls:
            continue
        if calls and message.role != "tool":
            paired.append(missing_results(calls))
        paired.append(message)
    return paired, lines[-1] != b""


def missing_results(calls: Sequence[ToolCall]) -> Message:
    """Error results for calls that have no result."""
    return Message(
        "tool",
        tuple(ToolResult(call.id, CUT_OFF, is_error=True, name=call.name) for call in calls),
    )
