"""W3C trace context: the ids of spans, and how they are handed on in ``TRACEPARENT``.

The ids of a run's spans are computed from its own ids. So several processes can send the spans of
one run without talking to each other, and an export after the run gives the same ids as the live
one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

VARIABLE = "TRACEPARENT"
_FORM = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class TraceContext(msgspec.Struct, frozen=True):
    """A span that others are children of."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""

    @property
    def header(self) -> str:
        """The value of ``TRACEPARENT``."""
        return f"00-{self.trace_id}-{self.span_id}-01"


def parse(text: str | None) -> TraceContext | None:
    """The span that a ``TRACEPARENT`` names; None if it is missing or invalid, which the standard
    says to ignore."""
    match = _FORM.fullmatch((text or "").strip().lower())
    if match is None or text is None or text.startswith("ff"):
        return None
    trace_id, span_id = match[1], match[2]
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id)


def parent_in(env: Mapping[str, str] | None = None) -> TraceContext | None:
    """The parent span of a run: of the variables that its caller gave, else the caller's active
    span, else that of corral's own environment."""
    from corral._system.environment import variable

    return parse((env or {}).get(VARIABLE)) or active_span() or parse(variable(VARIABLE, env))


def active_span() -> TraceContext | None:
    """The span that this task or thread works for, if the program uses OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:  # nothing is active in a program that has not loaded it
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}")


@contextmanager
def active(span: TraceContext) -> Generator[None]:
    """Make this the active span. Needs OpenTelemetry."""
    from opentelemetry import context, trace

    found = trace.SpanContext(
        int(span.trace_id, 16),
        int(span.span_id, 16),
        is_remote=False,
        trace_flags=trace.TraceFlags(1),
    )
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(found)))
    try:
        yield
    finally:
        context.detach(token)


def with_parent(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run whose parts work in other processes or threads: the caller's active
    span is not seen there."""
    span = None if VARIABLE in env else active_span()
    return {**env, **({} if span is None else {VARIABLE: span.header})}


def span_id(*parts: str) -> str:
    return _digest(8, parts)


def of_turn(run_id: str, parent: TraceContext | None) -> TraceContext:
    """The span of an agent's turn."""
    return _context(parent, run_id, "turn")


def turn_header(run_id: str, env: Mapping[str, str]) -> str:
    """``TRACEPARENT`` for the program of a turn."""
    return of_turn(run_id, parent_in(env)).header


def of_pipeline(run_id: str, parent: TraceContext | None) -> TraceContext:
    """The span of a pipeline run."""
    return _context(parent, run_id, "pipeline")


def of_visit(run_id: str, visit: str, outer: TraceContext | None) -> TraceContext:
    """The span of a node's visit. ``outer`` is the parent of the outermost pipeline run."""
    run = of_pipeline(run_id, outer)
    return TraceContext(run.trace_id, span_id(run_id, "visit", visit))


def parent_of_pipeline(run_id: str, outer: TraceContext | None) -> TraceContext | None:
    """The parent of a pipeline run: of ``RUN/VISIT`` that visit, which started it, else
    ``outer``."""
    above, _, visit = run_id.rpartition("/")
    return of_visit(above, visit, outer) if above else outer


def _context(parent: TraceContext | None, run_id: str, kind: str) -> TraceContext:
    trace_id = parent.trace_id if parent is not None else _digest(16, (run_id,))
    return TraceContext(trace_id, span_id(run_id, kind))


def _digest(size: int, parts: tuple[str, ...]) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=size).hexdigest()
