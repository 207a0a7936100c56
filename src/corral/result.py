"""The result: one pure fold over the events of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from corral.errors import from_event
from corral.events import Done, Error, Event, Init, Status, Text, Thinking
from corral.values import Cost, DeniedCall, FileChanged, Usage

BLOCK = 65_536
"""Characters, or pieces, of an answer that are joined at a time."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run came to.

    ``text`` is everything the agent answered, its messages parted by a blank
    line; ``final_text`` is the last of them alone.
    """

    status: Status
    text: str = ""
    final_text: str = ""
    output: Any = None
    files: tuple[FileChanged, ...] = ()
    files_complete: bool = True
    """False where the folder was too large, or was shared with another run."""
    denied: tuple[DeniedCall, ...] = ()
    denied_complete: bool = True
    """False where the agent may have been refused more than it tells of."""
    usage: Usage = Usage()
    usage_by_model: dict[str, Usage] = {}
    """Model → its share of ``usage``, where the agent reports it; else empty."""
    cost: Cost = Cost()
    stop_reason: str | None = None
    run_id: str = ""
    agent: str = ""
    session_id: str | None = None
    resume_token: str | None = None
    model: str | None = None
    agent_version: str | None = None
    auth: str | None = None
    """Which family of credentials was used, where that can be told."""
    duration: float = 0.0
    """Seconds."""
    error: Error | None = None
    label: str | None = None
    """The option ``label``."""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    def raise_for_status(self) -> Result:
        """This result where it is a success; else its error, as the exception it was."""
        if self.ok:
            return self
        error = self.error or Error(code="error", message=f"the run ended as {self.status}")
        raise from_event(error, self)


class _Message:
    """A text that grows. It takes little more memory than the text: small pieces are joined
    as they come, and the blocks that come of that are freed while they are joined."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._blocks: list[str] = []

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= BLOCK or len(self._pieces) >= BLOCK:
            self._close()

    def _close(self) -> None:
        self._blocks.append("".join(self._pieces))
        self._pieces.clear()
        self._size = 0

    def text(self) -> str:
        self._close()
        blocks, self._blocks = self._blocks, []
        blocks.reverse()
        text = ""
        while blocks:
            text += blocks.pop()  # in place, as nobody else holds it
        self._blocks = [text]
        return text


class ResultBuilder:
    """Collects events into a ``Result``. Holds the answer's text and nothing else."""

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._apart = True
        self._message_id: str | None = None
        self._init = Init()
        self._done: Done | None = None

    def add(self, event: Event) -> None:
        if event.parent is not None:
            return  # a sub-agent's words are not the answer
        if isinstance(event, Text):
            # A piece without an id goes on with the message before it.
            if self._apart or event.message_id not in (None, self._message_id):
                self._messages.append(_Message())
                self._message_id = event.message_id
                self._apart = False
            self._messages[-1].add(event.delta)
        elif isinstance(event, Init):
            self._init = event
        elif isinstance(event, Done):
            self._done = event
        elif getattr(event, "call_id", None) is not None or isinstance(event, Thinking):
            self._apart = True

    def result(self) -> Result:
        texts = (message.text() for message in self._messages)
        messages = [text for text in texts if text and not text.isspace()]
        done = self._done or Done(status="incomplete")
        return Result(
            status=done.status,
            text=messages[0] if len(messages) == 1 else _parted(messages),
            final_text=messages[-1] if messages else "",
            files=done.files,
            files_complete=done.files_complete,
            denied=done.denied,
            denied_complete=done.denied_complete,
            usage=done.usage,
            usage_by_model=done.usage_by_model,
            cost=done.cost,
            stop_reason=done.stop_reason,
            run_id=done.run_id or self._init.run_id,
            agent=done.agent or self._init.agent,
            session_id=done.session_id,
            resume_token=done.resume_token,
            model=done.model or self._init.model,
            agent_version=self._init.agent_version,
            auth=self._init.auth,
            duration=done.duration_ms / 1000,
            error=done.error,
            label=done.label or self._init.label,
        )


def _parted(messages: list[str]) -> str:
    text = ""
    for number, message in enumerate(messages):
        if number:
            text += "\n\n"
        text += message.strip("\n")
    return text


def result_from_events(events: Iterable[Event]) -> Result:
    """The result of a whole stream."""
    folding = ResultBuilder()
    for event in events:
        folding.add(event)
    return folding.result()
