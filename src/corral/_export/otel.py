"""The spans of a stored run: sent to an OTLP endpoint, or written to a file as OTLP JSON.

The trace is the one that the live export would have sent without a parent: its ids are computed
from the ids of the run (``corral._telemetry.trace_context``). ``TRACEPARENT`` gives it a parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from corral._core.terminal_text import json_bytes
from corral._pipelines.events import PipelineEvent, RunEvent
from corral._pipelines.run_spans import PipelineSpans
from corral._runs.stored_run import StoredRun
from corral._telemetry import trace_context
from corral._telemetry.sender import BATCH, OtlpExporter
from corral._telemetry.spans import AgentSpans, Span, as_otlp_json
from corral.errors import ProcessFailed


def spans_of(
    events: Iterable[RunEvent],
    parent: trace_context.TraceContext | None = None,
    *,
    content: bool = False,
) -> Iterator[Span]:
    """The spans of a session or a pipeline run."""
    agent = AgentSpans(parent, content=content)
    pipeline: PipelineSpans | None = None
    for event in events:
        if isinstance(event, PipelineEvent) and pipeline is None:
            pipeline = PipelineSpans(parent, content=content)
        if pipeline is not None:
            yield from pipeline.add(event)
        elif not isinstance(event, PipelineEvent):
            yield from agent.add(event)
    yield from agent.end() if pipeline is None else pipeline.end()


def write(run: StoredRun, out: Callable[[bytes], object], *, content: bool) -> int:
    """Write the spans as lines of OTLP JSON. Returns how many there are."""
    count = 0
    for batch in _batches(run, content=content):
        out(json_bytes(as_otlp_json(batch)) + b"\n")
        count += len(batch)
    return count


def send(run: StoredRun, endpoint: str, *, content: bool) -> int:
    """Send the spans. Returns how many there are. Raises ``ConfigError``, and ``ProcessFailed`` if
    the endpoint does not accept them."""
    exporter = OtlpExporter(endpoint)
    sent = 0
    try:
        for batch in _batches(run, content=content):
            if not exporter.send(batch):
                raise ProcessFailed(
                    f"the endpoint did not accept the spans: {exporter.url}"
                    f"{f' ({exporter.problem})' if exporter.problem else ''}",
                    hint=f"{sent:,} spans were sent before. Check the address, and"
                    " OTEL_EXPORTER_OTLP_HEADERS if it needs a key.",
                )
            sent += len(batch)
    finally:
        exporter.stop()
    return sent


def _batches(run: StoredRun, *, content: bool) -> Iterator[list[Span]]:
    batch: list[Span] = []
    for span in spans_of(run.events(), trace_context.parent_in(), content=content):
        batch.append(span)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
