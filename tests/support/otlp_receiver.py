"""A real OTLP receiver over HTTP on this machine. It decodes what it gets with the package that
OpenTelemetry's SDK encodes with."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """Use it as ``with``. ``hangs``: it accepts requests and never answers. ``status``: what it
    answers."""

    def __init__(self, *, hangs: bool = False, status: int = 200) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._release = threading.Event()
        if not hangs:
            self._release.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._release.wait(60)
                if status == 200:
                    receiver._take(self.path, dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        if headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        self.paths.append(path)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        for resource in request.resource_spans:
            self.resources.append(
                {each.key: each.value.string_value for each in resource.resource.attributes}
            )
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()

    def tree(self) -> dict[str, list[str]]:
        """Name of a span → names of its children, both sorted; "" has the roots."""
        names = {span.span_id: span.name for span in self.spans}
        found: dict[str, list[str]] = {}
        for span in self.spans:
            found.setdefault(names.get(span.parent_span_id, ""), []).append(span.name)
        return {name: sorted(children) for name, children in sorted(found.items())}


def attributes(span: Span) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value"):
            found[each.key] = getattr(each.value, kind)
    return found
