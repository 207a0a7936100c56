"""docs/http-api.md and docs/serve-api.md, made from the tables of operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from corral._view.calls import ApiEndpoint
from corral._view.server import describe

BEGIN, END = "<!-- made of the operations -->", "<!-- end -->"
_HEAD = """\
# The HTTP API of `corral view`

`/api/openapi.json` of a running server is this page as an OpenAPI document. [The view](view.md)
says how to start it.

Send the token that `corral view` prints as `Authorization: Bearer TOKEN`. Bodies are JSON with the
content type `application/json`. Times are seconds since the epoch, costs are US dollars; what is
not known is null. An error has a status of 400 or more and the body `{"error": {"code", "message",
"hint"}}`.

Streams are server-sent events. Each event has a name, JSON data, and often an `id`: the cursor with
which a client goes on after a lost connection, as `Last-Event-ID` or as the parameter `after`.

Logs are read in pages of 32 kB. An item belongs to the page of its first event, whose byte offset
is its `key`. A stream sends an item again with the same key when it changes.
"""


SERVE_HEAD = """\
# The HTTP API of `corral serve`

`/openapi.json` of a running server is this page as an OpenAPI document. [Agents for
services](serve.md) says how to start it, with examples.

Send the token of the client as `Authorization: Bearer TOKEN`. Bodies are JSON. Times are seconds,
costs are US dollars; fields that are empty are left out. An error has a status of 400 or more and
the body `{"error": {"code", "message", "hint"}}`.
"""


def http_api_page(endpoints: Sequence[ApiEndpoint], head: str = _HEAD) -> str:
    """The text of the page."""
    schemas = describe(endpoints)["components"]["schemas"]  # type: ignore[index,call-overload]
    parts = [head, BEGIN, "\n## Operations\n"]
    parts += [_operation(each) for each in endpoints]
    parts.append("\n## Types\n")
    parts += [_type(name, schema) for name, schema in schemas.items()]  # type: ignore[union-attr]
    return "\n".join([*parts, END, ""])


def _operation(endpoint: ApiEndpoint) -> str:
    lines = [f"### {endpoint.method} {endpoint.path}", "", endpoint.text]
    if endpoint.params:
        lines += ["", "| parameter | |", "|---|---|"]
        lines += [f"| `{each.name}` | {each.text} |" for each in endpoint.params]
    lines.append("")
    if endpoint.body is not None:
        lines.append(f"Body: `{endpoint.body.__name__}`.")
    if endpoint.response is not None:
        lines.append(f"Response: `{endpoint.response.__name__}`.")
    elif endpoint.events:
        names = ", ".join(f"`{_event_name(each)}` (`{each.__name__}`)" for each in endpoint.events)
        lines.append(f"Events: {names}.")
    else:
        lines.append(f"Response: {endpoint.media}.")
    return "\n".join(lines) + "\n"


def _event_name(kind: type[msgspec.Struct]) -> str:
    return {"PipelineEvents": "events", "RunView": "end"}.get(
        kind.__name__, kind.__name__.removesuffix("Update").lower()
    )


def _type(name: str, schema: object) -> str:
    fields = msgspec.convert(schema, dict[str, object])
    lines = [f"### {name}", ""]
    if text := fields.get("description"):
        lines += [" ".join(str(text).split()), ""]
    lines += ["| field | type |", "|---|---|"]
    properties = msgspec.convert(fields.get("properties", {}), dict[str, dict[str, object]])
    lines += [f"| `{key}` | {' or '.join(_types(each))} |" for key, each in properties.items()]
    return "\n".join(lines) + "\n"


def _types(schema: dict[str, object]) -> Iterator[str]:
    if "$ref" in schema:
        yield str(schema["$ref"]).rpartition("/")[2]
    elif "enum" in schema:
        values = msgspec.convert(schema["enum"], list[object])
        yield " ".join(f"`{'null' if each is None else each}`" for each in values)
    elif "anyOf" in schema:
        for each in msgspec.convert(schema["anyOf"], list[dict[str, object]]):
            yield from _types(each)
    elif schema.get("type") == "array":
        items = msgspec.convert(schema.get("items", {}), dict[str, object])
        yield f"list of {' or '.join(_types(items)) or 'JSON'}"
    else:
        yield str(schema.get("type", "JSON"))
