"""A node's directory in the run directory: the files that people, agents and tools read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from corral.events import Event, to_json
from corral.pipelines.execution import verdict
from corral.pipelines.execution.verdict import NodeVerdict
from corral.pipelines.scheduler.outcome import Outcome
from corral.system.environment import SecretRedactor
from corral.values import Json

STATUS = "status.json"
OF_AN_ATTEMPT = (STATUS, "prompt.md", "response.md", "tool_output.txt", "error.txt")
"""What one attempt leaves, and the next must not find."""
LARGEST_STATUS = 1024 * 1024
"""Bytes of a ``status.json`` that somebody wrote."""


def clear(folder: Path) -> None:
    """The folder, there and without what an earlier attempt left. Raises ``OSError``."""
    try:
        left = os.listdir(folder)
    except FileNotFoundError:
        folder.mkdir(parents=True)
        return
    for name in OF_AN_ATTEMPT:
        if name in left:
            os.unlink(f"{folder}{os.sep}{name}")


def status_json(outcome: Outcome) -> dict[str, Json]:
    """As ``status.json`` has it."""
    status: dict[str, Json] = {
        "outcome": outcome.verdict or outcome.status,
        "preferred_label": outcome.preferred_label,
        "suggested_next_ids": [*outcome.suggested_next_ids],
        "context_updates": outcome.context_updates,
        "notes": outcome.notes,
    }
    if outcome.failure_reason:
        status["failure_reason"] = outcome.failure_reason
    if outcome.cost_usd is not None:
        status["cost_usd"] = outcome.cost_usd
    if outcome.tokens is not None:
        status["tokens"] = outcome.tokens
    return status


def read_status(folder: Path) -> NodeVerdict | None:
    """What the node's agent or command wrote as its own status; None where it wrote none. Raises
    ``ValueError`` for what is no status."""
    try:
        fd = os.open(
            f"{folder}{os.sep}{STATUS}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"status.json cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        try:
            raw = file.read(LARGEST_STATUS + 1)
        except OSError as error:
            raise ValueError(f"status.json cannot be read: {error.strerror}") from error
    if len(raw) > LARGEST_STATUS:
        raise ValueError(f"status.json has over {LARGEST_STATUS:,} bytes")
    try:
        told: Json = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"status.json is no JSON: {error}") from error
    if not isinstance(told, dict):
        raise ValueError("status.json is no object")
    if "outcome" not in told and "status" not in told:
        raise ValueError("status.json has no outcome")
    return verdict.read(told, "status.json")


class AgentEventLog:
    """``events.ndjson`` of a node: each event of its agents as it comes, with secrets redacted.

    The file is made by the first event. If the disk is full, events are
    lost but the run continues.
    """

    def __init__(
        self, folder: Path, redactor: SecretRedactor, then: Callable[[Event], None]
    ) -> None:
        self._folder = folder
        self._redactor = redactor
        self._then = then
        self._fd: int | None = None
        self._is_full = False

    def emit(self, event: Event) -> None:
        if not self._is_full:
            try:
                if self._fd is None:
                    self._fd = os.open(
                        self._folder / "events.ndjson",
                        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
                        0o666,
                    )
                os.write(self._fd, self._redactor.clean(to_json(event)) + b"\n")
            except OSError:
                self._is_full = True
        self._then(event)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
