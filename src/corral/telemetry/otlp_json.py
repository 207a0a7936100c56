"""Spans in OTLP's JSON form: one ``ExportTraceServiceRequest`` per line, as the file exporter of
the OpenTelemetry collector writes them and its file receiver reads them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corral.telemetry.spans import Span, Value
from corral.values import Json, JsonObject
from corral.version import __version__

SCOPE = "corral"
INTERNAL = 1
ERROR = 2


def line(spans: Sequence[Span]) -> bytes:
    """The spans as one line, without the newline."""
    return msgspec.json.encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(resource())},
                    "scopeSpans": [
                        {
                            "scope": {"name": SCOPE, "version": __version__},
                            "spans": [_span(each) for each in spans],
                        }
                    ],
                }
            ]
        }
    )


def resource() -> dict[str, Value]:
    """What sent the spans."""
    return {"service.name": SCOPE, "service.version": __version__}


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1000


def _span(span: Span) -> JsonObject:
    found: JsonObject = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": str(nanoseconds(span.start)),
        "endTimeUnixNano": str(nanoseconds(span.end)),
        "attributes": [*_attributes(span.attributes)],
    }
    if span.parent_id is not None:
        found["parentSpanId"] = span.parent_id
    if span.notes:
        found["events"] = [
            {
                "name": note.name,
                "timeUnixNano": str(nanoseconds(note.ts)),
                "attributes": [*_attributes(note.attributes)],
            }
            for note in span.notes
        ]
    if span.error is not None:
        found["status"] = {"code": ERROR, "message": span.error}
    return found


def _attributes(values: dict[str, Value]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> JsonObject:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [{"stringValue": each} for each in value]}}
