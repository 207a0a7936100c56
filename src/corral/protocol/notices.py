"""Error events that do not end a run: warnings and retries."""

from __future__ import annotations

from corral.events import Error


def warning(code: str, message: str, phase: str = "stream") -> Error:
    return Error(code, message, recoverable=True, level="warning", phase=phase)


def retrying(message: str) -> Error:
    """A model call failed, and the agent tries again."""
    return Error(
        "retrying", message, recoverable=True, retryable=True, level="warning", phase="request"
    )
