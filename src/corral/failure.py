"""What every error carries: the phase, whether trying again can help, a hint, the facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from corral import events

Phase = Literal[
    "config", "spawn", "handshake", "request", "stream", "tool", "response", "budget", "pipeline"
]

FACTS = ("exit_code", "signal", "stderr", "frame", "argv", "agent_version", "retry_after",
         "resets_at", "provider", "http_status", "provider_code")  # fmt: skip


class CorralError(Exception):
    """The root. ``str(error)`` is the message, with the hint on a line of its own."""

    code: ClassVar[str] = "error"
    """Stable, for events and logs."""
    cli_exit: ClassVar[int] = 1
    """What ``corral`` exits with when this ends it."""
    status: ClassVar[events.Status] = "error"
    """The status of ``done`` when this ends a run."""
    phase: Phase = "stream"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        phase: Phase | None = None,
        retryable: bool | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        stderr: str | None = None,
        frame: str | None = None,
        argv: Sequence[str] = (),
        agent_version: str | None = None,
        retry_after: float | None = None,
        resets_at: float | None = None,
        provider: str | None = None,
        http_status: int | None = None,
        provider_code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if phase is not None:
            self.phase = phase
        if retryable is not None:
            self.retryable = retryable
        self.exit_code = exit_code
        self.signal = signal
        self.stderr = stderr
        """The last lines the program wrote there."""
        self.frame = frame
        """The last raw line it wrote on stdout."""
        self.argv = tuple(argv)
        """As it was started, secrets struck out."""
        self.agent_version = agent_version
        self.retry_after = retry_after
        """Seconds, as the other side told."""
        self.resets_at = resets_at
        """The same as a moment, in seconds since the epoch."""
        self.provider = provider
        """Of models: the vendor that failed, the status of its answer, its own word for it."""
        self.http_status = http_status
        self.provider_code = provider_code
        self.result: Any = None
        """The ``Result`` of the run that this error ended, where there was one."""

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def event(self) -> events.Error:
        """This error as it appears in the stream."""
        facts: dict[str, events.Json] = {}
        for name in FACTS:
            value = getattr(self, name)
            if value is not None and value != ():
                facts[name] = list(value) if name == "argv" else value
        return events.Error(
            code=self.code,
            message=self.message,
            retryable=self.retryable,
            hint=self.hint,
            phase=self.phase,
            facts=facts,
        )
