"""Sends spans to an OTLP endpoint over HTTP, with the exporter of OpenTelemetry's SDK.

The SDK is the extra ``otel``. It reads the usual variables: ``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_EXPORTER_OTLP_HEADERS`` and so on.

``Sender.put`` never waits and never raises. A thread takes the spans from a queue of limited
length and sends them in batches. If the queue is full, or the endpoint does not answer, spans are
dropped; ``flush`` waits a limited time, and how many were lost is logged as a warning. An endpoint
that has failed is hardly waited for again until it answers.

``LiveSpans`` sends the spans of a turn while it goes on: the option ``otel``. The parent is
``TRACEPARENT`` of the run's ``env``, else of corral's environment. The program of the agent gets
the span of its turn as ``TRACEPARENT``; if it serves several turns, that of the first. The texts of
the run are sent only if ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is true, the switch
that all GenAI instrumentations have.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from corral.errors import ConfigError, ProcessFailed
from corral.events import Event
from corral.system import threads
from corral.system.environment import variable
from corral.telemetry import spans as telemetry_spans
from corral.telemetry import trace_context
from corral.telemetry.spans import AgentSpans, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

BY_ENVIRONMENT = "env"
"""An endpoint: the one that the variables of OpenTelemetry name."""
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TIMEOUTS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
TRACES_PATH = "/v1/traces"
MAX_QUEUE = 4096
"""Spans that wait to be sent."""
BATCH = 256
FLUSH_SECONDS = 5.0
"""How long the end of a run waits for its spans to be sent."""
RETRY_SECONDS = 0.1
"""The same while the endpoint does not answer."""
SEND_SECONDS = 10.0
"""For one request, with its repetitions."""
CONTENT_SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
INSTALL = "pip install 'corral[otel]'"
_log = logging.getLogger("corral.telemetry")


class SendsSpans(Protocol):
    """The exporter of the SDK, as this module uses it."""

    def send(self, spans: Sequence[Span]) -> bool: ...
    def stop(self) -> None: ...


def check(endpoint: str) -> None:
    """Raise ``ConfigError`` if the SDK is missing or the endpoint is no HTTP URL."""
    try:
        exporter = find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError:  # a package above it is missing
        exporter = None
    if exporter is None:
        raise ConfigError(
            "telemetry needs OpenTelemetry's SDK, which is not installed", hint=f"{INSTALL}."
        )
    if endpoint == BY_ENVIRONMENT:
        return
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(
            f"not the URL of an OTLP endpoint: {endpoint!r}",
            hint="Write http://localhost:4318, or env for OTEL_EXPORTER_OTLP_ENDPOINT.",
        )


def traces_url(endpoint: str) -> str:
    """The full URL: the path of traces is added to an address without a path."""
    parts = urlsplit(endpoint)
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + TRACES_PATH


class OtlpExporter:
    """Sends batches, one at a time, and waits for each."""

    def __init__(self, endpoint: str, timeout: float | None = None) -> None:
        """``timeout``: seconds for a request; else what the variables say, else ``SEND_SECONDS``.
        Raises ``ConfigError``."""
        check(endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        if timeout is None and not any(map(variable, TIMEOUTS)):
            timeout = SEND_SECONDS
        url = None if endpoint == BY_ENVIRONMENT else traces_url(endpoint)
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=timeout)
        self.url = without_login(url or variable(ENDPOINT) or "http://localhost:4318")
        """The address, for messages."""
        self.problem = ""
        """Why the last batch was not accepted."""
        self._resource = Resource.create(telemetry_spans.resource())
        resource = telemetry_spans.resource()
        self._scope = InstrumentationScope(telemetry_spans.SCOPE, str(resource["service.version"]))
        self._messages = _Messages()
        logger = logging.getLogger("opentelemetry.exporter")
        logger.addHandler(self._messages)
        logger.propagate = False  # it is reported once, at the end

    def send(self, spans: Sequence[Span]) -> bool:
        """Whether the endpoint accepted them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([self._readable(span) for span in spans])
        self.problem = "" if result is SpanExportResult.SUCCESS else self._messages.last
        return result is SpanExportResult.SUCCESS

    def stop(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import Event as SpanEvent
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        status = Status() if span.error is None else Status(StatusCode.ERROR, span.error)
        parent = span.parent_id
        notes = [
            SpanEvent(note.name, note.attributes, timestamp=telemetry_spans.nanoseconds(note.ts))
            for note in span.notes
        ]
        return ReadableSpan(
            span.name,
            context=_context(span.context.trace_id, span.context.span_id),
            parent=None if parent is None else _context(span.context.trace_id, parent),
            resource=self._resource,
            attributes=span.attributes,
            events=notes,
            status=status,
            start_time=telemetry_spans.nanoseconds(span.start),
            end_time=telemetry_spans.nanoseconds(span.end),
            instrumentation_scope=self._scope,
        )


class _Messages(logging.Handler):
    """Keeps the last message of the exporter, which says why a batch was not accepted."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = " ".join(record.getMessage().split())[:300]


def without_login(url: str) -> str:
    """The URL without user, password and query, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _context(trace_id: str, span_id: str) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1)
    )


class Sender:
    """Sends spans from its own thread."""

    def __init__(self, exporter: SendsSpans, name: str) -> None:
        """``name`` is the endpoint in messages."""
        self._exporter = exporter
        self._name = name
        self._queue: queue.Queue[Span] = queue.Queue(MAX_QUEUE)
        self._lock = threading.Condition()
        self._unsent = 0
        """Spans that were accepted and are not sent or dropped yet."""
        self._dropped = 0
        self._given_up = 0
        """Spans that are being sent and were already reported as lost."""
        self._is_failing = False
        self._thread: threading.Thread | None = None

    def put(self, spans: Sequence[Span]) -> None:
        """Send these later. If too many wait already, they are dropped."""
        for span in spans:
            with self._lock:
                try:
                    self._queue.put_nowait(span)
                    self._unsent += 1
                except queue.Full:
                    self._dropped += 1
        if spans and (self._thread is None or not self._thread.is_alive()):  # or after a fork
            thread = threading.Thread(target=self._work, name="corral-telemetry", daemon=True)
            try:
                threads.start(thread)
                self._thread = thread
            except ProcessFailed:
                self._drop_all()

    def flush(self, seconds: float | None = None) -> int:
        """Wait until everything is sent, but not longer than this, or ``FLUSH_SECONDS``; what is
        not sent then is dropped. Returns how many spans were lost since the last call, which is
        also logged."""
        with self._lock:
            wait = FLUSH_SECONDS if seconds is None else seconds
            if self._is_failing:
                self._lock.wait_for(lambda: not self._unsent, min(wait, RETRY_SECONDS))
            else:
                self._lock.wait_for(lambda: not self._unsent or self._is_failing, wait)
            if self._unsent:
                self._is_failing = True
        self._drop_all()
        with self._lock:
            lost = self._dropped + self._unsent - self._given_up
            self._dropped, self._given_up = 0, self._unsent
        if lost:
            _log.warning("%s spans could not be sent to %s", f"{lost:,}", self._name)
        return lost

    async def flush_soon(self) -> None:
        """``flush`` in a thread."""
        try:
            await threads.in_thread(self.flush)
        except threads.NoThread:
            self.flush(0.0)

    def _drop_all(self) -> None:
        """Drop what waits. What is being sent is left alone."""
        with self._lock, contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
                self._dropped += 1
                self._unsent -= 1

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH:
                    batch.append(self._queue.get_nowait())
            try:
                is_sent = self._exporter.send(batch)
            except Exception:  # of any code of the SDK: telemetry never fails a run
                _log.debug("spans were not sent", exc_info=True)
                is_sent = False
            with self._lock:
                self._unsent -= len(batch)
                known = min(self._given_up, len(batch))
                self._given_up -= known
                self._dropped += 0 if is_sent else len(batch) - known
                self._is_failing = not is_sent
                self._lock.notify_all()


_senders: dict[str, Sender] = {}
"""One for each endpoint of this process."""


def sender_for(endpoint: str) -> Sender:
    """Raises ``ConfigError``."""
    if endpoint not in _senders:
        exporter = OtlpExporter(endpoint)
        _senders[endpoint] = Sender(exporter, exporter.url)
    return _senders[endpoint]


def with_content() -> bool:
    """Whether texts are sent."""
    return (variable(CONTENT_SWITCH) or "").lower() in ("true", "1", "span_only", "span_and_event")


class LiveSpans:
    """Sends the spans of one turn."""

    def __init__(self, endpoint: str, env: Mapping[str, str]) -> None:
        """Raises ``ConfigError``."""
        self._spans = AgentSpans(trace_context.parent_in(env), content=with_content())
        self._sender = sender_for(endpoint)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._sender.put(self._spans.add(event))

    async def close(self) -> None:
        """Wait a limited time until the spans are sent."""
        self._sender.put(self._spans.end())
        await self._sender.flush_soon()
