"""Sends the spans of a turn while it goes on: the option ``otel``.

The parent is ``TRACEPARENT`` of the run's ``env``, else of corral's environment. The program of the
agent gets the span of its turn as ``TRACEPARENT``; if it serves several turns, that of the first.
The texts of the run are sent only if ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is
true, the switch that all GenAI instrumentations have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.events import Event
from corral.system.environment import variable
from corral.telemetry import trace_context
from corral.telemetry.sender import Sender, sender_for
from corral.telemetry.spans import AgentSpans

VARIABLE = trace_context.VARIABLE
CONTENT_SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def with_content() -> bool:
    """Whether texts are sent."""
    return (variable(CONTENT_SWITCH) or "").lower() in ("true", "1", "span_only", "span_and_event")


def turn_header(run_id: str, env: Mapping[str, str]) -> str:
    """``TRACEPARENT`` for the program of a turn."""
    return trace_context.of_turn(run_id, trace_context.parent_in(env)).header


class LiveSpans:
    """Sends the spans of one turn."""

    def __init__(self, endpoint: str, env: Mapping[str, str]) -> None:
        """Raises ``ConfigError``."""
        self._spans = AgentSpans(trace_context.parent_in(env), content=with_content())
        self._sender: Sender = sender_for(endpoint)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._sender.put(self._spans.add(event))

    async def close(self) -> None:
        """Wait a limited time until the spans are sent."""
        self._sender.put(self._spans.end())
        await self._sender.flush_soon()
