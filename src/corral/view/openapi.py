"""The OpenAPI document, made from the table of operations and the types."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from corral.values import Json, JsonObject
from corral.version import __version__
from corral.view.calls import Endpoint
from corral.view.records import ErrorBody

_PARAM = re.compile(r"\{(\w+)\}")
_SCHEMA = "#/components/schemas/{name}"
_ABOUT = (
    "Runs of corral: sessions, pipelines and batches. Send the token that `corral view` prints as"
    " `Authorization: Bearer TOKEN`. Times are seconds since the epoch."
)


def document(endpoints: Iterable[Endpoint]) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(describe(endpoints))


def describe(endpoints: Iterable[Endpoint]) -> JsonObject:
    """The document."""
    table = [*endpoints]
    types = {
        kind
        for each in table
        for kind in (each.response, each.body, ErrorBody, *each.events)
        if kind is not None
    }
    ordered = sorted(types, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_SCHEMA)
    operations: dict[str, Json] = {}
    for each in table:
        methods = operations.setdefault(each.path, {})
        if isinstance(methods, dict):
            methods[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "corral view", "version": __version__, "description": _ABOUT},
        "paths": operations,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint) -> JsonObject:
    named: list[Json] = [_parameter(name, "path") for name in _PARAM.findall(endpoint.path)]
    named += [_parameter(each.name, "query", each.kind, each.text) for each in endpoint.params]
    operation: JsonObject = {
        "operationId": endpoint.name,
        "summary": endpoint.text,
        "parameters": named,
        "responses": {
            "200": {"description": "Success.", "content": {endpoint.media: _content(endpoint)}},
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": _ref(ErrorBody)}},
            },
        },
    }
    if endpoint.body is not None:
        content: Json = {"application/json": {"schema": _ref(endpoint.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameter(name: str, place: str, kind: str = "string", text: str = "") -> Json:
    found: JsonObject = {"name": name, "in": place, "schema": {"type": kind}}
    if place == "path":
        found["required"] = True
    if text:
        found["description"] = text
    return found


def _content(endpoint: Endpoint) -> JsonObject:
    if endpoint.response is not None:
        return {"schema": _ref(endpoint.response)}
    if endpoint.events:
        return {
            "schema": {
                "description": "The data of the events.",
                "anyOf": [_ref(each) for each in endpoint.events],
            }
        }
    return {"schema": {"type": "string", "format": "binary"}}


def _ref(kind: type[msgspec.Struct]) -> JsonObject:
    return {"$ref": _SCHEMA.format(name=kind.__name__)}
