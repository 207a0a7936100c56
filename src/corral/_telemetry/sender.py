"""Sends spans to an OTLP endpoint over HTTP, encoded by OpenTelemetry's SDK.

The SDK is the extra ``otel``. The usual variables are followed: ``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_EXPORTER_OTLP_HEADERS`` and so on. The SDK's own exporter is not used: it reports failures
only by loggers of its own, which belong to the program that corral is part of.

``Sender.put`` never waits and never raises. A thread takes the spans from a queue of limited
length and sends them in batches. If the queue is full, or the endpoint does not answer, spans are
dropped; ``flush`` waits a limited time, and how many were lost is logged as a warning, with the
reason; the same reason once, until spans are accepted again. An endpoint that has failed is hardly
waited for again until it answers.

``LiveSpans`` sends the spans of a turn while it goes on: the option ``otel``. The parent is
``TRACEPARENT`` of the run's ``env``, else the caller's active span, else ``TRACEPARENT`` of
corral's environment. The program of the agent gets the span of its turn as ``TRACEPARENT``; if it
serves several turns, that of the first. The texts of the run are sent only if
``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is true, the switch that all GenAI
instrumentations have.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import queue
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from corral._system import threads
from corral._system.clock import Stopwatch
from corral._system.environment import variable
from corral._telemetry import spans as telemetry_spans
from corral._telemetry import trace_context
from corral._telemetry.spans import AgentSpans, Span
from corral.errors import ConfigError, ProcessFailed
from corral.events import Event

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

BY_ENVIRONMENT = "env"
"""An endpoint: the one that the variables of OpenTelemetry name."""
DEFAULT_ENDPOINT = "http://localhost:4318"
TRACES_PATH = "/v1/traces"
MAX_QUEUE = 4096
"""Spans that wait to be sent."""
BATCH = 256
FLUSH_SECONDS = 5.0
"""How long the end of a run waits for its spans to be sent."""
RETRY_SECONDS = 0.1
"""The same while the endpoint does not answer."""
SEND_SECONDS = 10.0
"""For one batch, with its repetitions."""
PAUSES = (0.2, 1.0)
"""Seconds before each repetition."""
TEMPORARY = frozenset({429, 502, 503, 504})
MAX_REASON = 300
"""Characters of an answer that says why spans were refused."""
CONTENT_SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
INSTALL = "pip install 'corral[otel]'"
_log = logging.getLogger("corral.telemetry")


class SendsSpans(Protocol):
    problem: str
    """Why the last batch was not accepted."""

    def send(self, spans: Sequence[Span]) -> bool: ...


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


def _setting(name: str) -> str:
    """``OTEL_EXPORTER_OTLP_TRACES_name``, else ``OTEL_EXPORTER_OTLP_name``."""
    prefix = "OTEL_EXPORTER_OTLP_"
    return variable(f"{prefix}TRACES_{name}") or variable(f"{prefix}{name}") or ""


class OtlpExporter:
    """Sends batches, one at a time, and waits for each."""

    def __init__(self, endpoint: str, timeout: float | None = None) -> None:
        """``timeout``: seconds for a batch; else what the variables say, else ``SEND_SECONDS``.
        Raises ``ConfigError``."""
        check(endpoint)
        import requests
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.util.re import parse_env_headers

        self._timeout = timeout if timeout is not None else _seconds(_setting("TIMEOUT"))
        if endpoint == BY_ENVIRONMENT:
            base = variable("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
            exact = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            self._url = exact or base.rstrip("/") + TRACES_PATH
        else:
            self._url = traces_url(endpoint)
        self.url: str = without_login(self._url)
        """The address, for messages."""
        self.problem: str = ""
        self._stopped = threading.Event()
        self._compression = _setting("COMPRESSION").strip().lower()
        self._session = requests.Session()
        self._session.headers.update({"Content-Type": "application/x-protobuf"})
        if self._compression in ("gzip", "deflate"):
            self._session.headers["Content-Encoding"] = self._compression
        self._session.headers.update(parse_env_headers(_setting("HEADERS"), liberal=True))
        self._session.verify = _setting("CERTIFICATE") or True
        if certificate := _setting("CLIENT_CERTIFICATE"):
            key = _setting("CLIENT_KEY")
            self._session.cert = (certificate, key) if key else certificate
        resource = telemetry_spans.resource()
        self._resource = Resource.create(resource)
        self._scope = InstrumentationScope(telemetry_spans.SCOPE, str(resource["service.version"]))

    def send(self, spans: Sequence[Span]) -> bool:
        """Whether the endpoint accepted them; ``problem`` says why not."""
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        data: bytes = encode_spans([self._readable(span) for span in spans]).SerializeToString()
        if self._compression == "gzip":
            data = gzip.compress(data)
        elif self._compression == "deflate":
            data = zlib.compress(data)
        stopwatch = Stopwatch()
        for pause in (*PAUSES, None):
            left = max(0.01, self._timeout - stopwatch.seconds)
            self.problem, is_temporary = self._post(data, left)
            if not self.problem:
                return True
            if not is_temporary or pause is None or pause >= self._timeout - stopwatch.seconds:
                break
            self._stopped.wait(pause)
        return False

    def _post(self, data: bytes, seconds: float) -> tuple[str, bool]:
        """Send it once. Returns the problem, and whether to try again."""
        import requests

        try:
            with self._session.post(
                self._url, data=data, timeout=seconds, allow_redirects=False, stream=True
            ) as response:
                if response.ok and not response.is_redirect:
                    return "", False
                text = next(response.iter_content(4 * MAX_REASON), b"").decode("utf-8", "replace")
        except requests.Timeout:
            return f"no answer within {self._timeout:g} s", False
        except (requests.RequestException, OSError, ValueError) as error:
            return _cause(error), isinstance(error, requests.ConnectionError)
        status, body = response.status_code, " ".join(text.split())[:MAX_REASON]
        problem = f"it answered {status} {response.reason or ''}".rstrip()
        if body and not body.startswith("<"):  # not a page for people
            problem += f": {body}"
        if status in (404, 405):
            problem += f"; is {urlsplit(self._url).path} the path of its OTLP receiver?"
        return problem, status in TEMPORARY

    def stop(self) -> None:
        self._stopped.set()
        self._session.close()

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


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return SEND_SECONDS


def _cause(error: BaseException) -> str:
    """What the operating system says, instead of the layers of the HTTP library around it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        inner = inner.__cause__ or inner.__context__
    return " ".join(str(error).split())[:MAX_REASON] or type(error).__name__


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
        self._reported = ""
        """The last problem that was logged."""
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
            problem = self._exporter.problem
            if self._unsent:
                if not self._is_failing:
                    problem = f"no answer within {wait:g} s"
                self._is_failing = True
        self._drop_all()
        with self._lock:
            lost = self._dropped + self._unsent - self._given_up
            self._dropped, self._given_up = 0, self._unsent
            is_known = self._reported and (problem or self._reported) == self._reported
            if lost and not is_known:
                self._reported = problem = problem or f"more than {MAX_QUEUE:,} at once"
        if lost:
            level = logging.DEBUG if is_known else logging.WARNING
            _log.log(level, "%s spans were not sent to %s: %s", f"{lost:,}", self._name, problem)
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
            except Exception as error:  # of any code of the SDK: telemetry never fails a run
                _log.debug("spans were not sent", exc_info=True)
                self._exporter.problem, is_sent = f"{type(error).__name__}: {error}", False
            with self._lock:
                if is_sent:
                    self._reported = ""
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
