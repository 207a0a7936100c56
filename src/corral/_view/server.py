"""The server: the operations of the API, the OpenAPI document that describes them, and the page, in
one application; the socket, uvicorn, and a quick end."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from corral._docs.pages import NO_SITE_HINT, site_folder
from corral._protocol.schema import without_samples
from corral._system import fs
from corral._system.http import asgi_server
from corral._view.auth import API, Guard, error_response
from corral._view.calls import (
    ApiCall,
    ApiEndpoint,
    Param,
    Services,
    on_http_error,
    operation_routes,
    wrong_method,
)
from corral._view.records import ErrorBody
from corral._view.routes import pipelines, runs, sessions
from corral.values import Json, JsonObject
from corral.version import __version__

STATIC = Path(str(files("corral._view"))) / "static"
_MEDIA = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
ENDPOINTS = (*runs.ENDPOINTS, *sessions.ENDPOINTS, *pipelines.ENDPOINTS)
STOPS = (signal.SIGINT, signal.SIGTERM)


async def _page(request: Request) -> Response:
    """A file of the page; its first page for every other path."""
    name = request.path_params.get("path", "") or "index.html"
    if f"/{name}".startswith(API):
        return error_response(404, "not_found", f"there is no operation /{name}")
    if request.method not in ("GET", "HEAD"):
        return wrong_method(("GET",))
    file = STATIC / name.replace("\0", "_")
    is_inside = STATIC in file.resolve().parents
    if not is_inside or file.suffix not in _MEDIA or not fs.is_file(file):
        file = STATIC / "index.html"
        if not fs.is_file(file):
            return PlainTextResponse("The page is missing in this installation.", 404)
    headers = {"Cache-Control": "no-cache"}
    return FileResponse(file, media_type=_MEDIA[file.suffix], headers=headers)


_DOCS_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline';"
    " style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
    " worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
"""The pages of the documentation have scripts and styles of their own. They show nothing that a run
or a user wrote."""


class _DocsFiles(StaticFiles):
    """The site of the documentation."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_DOCS_HEADERS)
        return response


def _docs_route() -> BaseRoute:
    """The documentation below /docs, or where to read it if this installation has no site."""
    folder = site_folder()
    if folder is not None:
        return Mount("/docs", _DocsFiles(directory=folder, html=True))

    async def missing(_: Request) -> Response:
        return PlainTextResponse(f"This build of corral has no site: {NO_SITE_HINT}", 404)

    return Route("/docs{path:path}", missing)


def create(services: Services) -> ASGIApp:
    """The application, with its guard."""

    async def respond(endpoint: ApiEndpoint, request: Request) -> Response:
        return await endpoint.respond(ApiCall(request, services))

    async def openapi(_: Request) -> Response:
        document = msgspec.json.encode(describe(ENDPOINTS))
        return Response(document, media_type="application/json")

    routes: list[BaseRoute] = [*operation_routes(ENDPOINTS, respond)]
    routes += [Route("/api/openapi.json", openapi), _docs_route()]
    routes.append(Route("/{path:path}", _page, methods=_ALL_METHODS))
    app = Starlette(routes=routes, exception_handlers={HTTPException: on_http_error})
    return Guard(app, services.access)


_ALL_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_PARAM = re.compile(r"\{(\w+)\}")
_SCHEMA = "#/components/schemas/{name}"
_ABOUT = (
    "Runs of corral: sessions, pipelines and batches. Send the token that `corral view` prints as"
    " `Authorization: Bearer TOKEN`. Times are seconds since the epoch."
)


def describe(
    endpoints: Iterable[ApiEndpoint], title: str = "corral view", about: str = _ABOUT
) -> JsonObject:
    """The OpenAPI document, made from the table of operations and the types."""
    table = [*endpoints]
    kinds = {
        kind
        for each in table
        for kind in (each.response, each.body, ErrorBody, *each.events)
        if kind is not None
    }
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_SCHEMA)
    operations: dict[str, Json] = {}
    for each in table:
        methods = operations.setdefault(each.path, {})
        if isinstance(methods, dict):
            methods[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": about},
        "paths": operations,
        "components": {
            "schemas": without_samples(dict(sorted(schemas.items()))),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: ApiEndpoint) -> JsonObject:
    in_path = [Param(name, "") for name in _PARAM.findall(endpoint.path)]
    named = [_parameter(each, "path") for each in in_path]
    named += [_parameter(each, "query") for each in endpoint.params]
    schema: JsonObject = {"type": "string", "format": "binary"}
    if endpoint.response is not None:
        schema = _ref(endpoint.response)
    elif endpoint.events:
        data = [_ref(each) for each in endpoint.events]
        schema = {
            "type": "string",
            "description": "Server-sent events. The data of each is JSON of x-event-data.",
            "x-event-data": {"anyOf": [*data]},
        }
    operation: JsonObject = {
        "operationId": endpoint.name,
        "summary": endpoint.text,
        "parameters": named,
        "responses": {
            "200": {"description": "Success.", "content": {endpoint.media: {"schema": schema}}},
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


def _parameter(parameter: Param, place: str) -> Json:
    schema: JsonObject = {"type": parameter.kind}
    if parameter.minimum is not None:
        schema["minimum"] = parameter.minimum
    described: JsonObject = {"name": parameter.name, "in": place, "schema": schema}
    if place == "path":
        described["required"] = True
    if parameter.text:
        described["description"] = parameter.text
    return described


def _ref(kind: type[msgspec.Struct]) -> JsonObject:
    return {"$ref": _SCHEMA.format(name=kind.__name__)}


def serve(listener: socket.socket, services: Services, on_ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM."""

    async def run() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in STOPS:
            loop.add_signal_handler(number, stop.set)
        try:
            await asgi_server.serve(
                create(services), listener, on_ready=on_ready, stop=stop,
                on_stop=services.closing.set,
            )  # fmt: skip
        finally:
            await services.catalog.close()

    asyncio.run(run())
