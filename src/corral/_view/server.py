"""The server: the operations of the API, the OpenAPI document that describes them, and the page, in
one application; the socket, uvicorn, and a quick end."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import types
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from corral._docs.pages import NO_SITE_HINT, site_folder
from corral._protocol.schema import without_samples
from corral._system import fs
from corral._view.auth import API, Guard, error_response
from corral._view.calls import ApiCall, ApiEndpoint, Services
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
END_SECONDS = 1
"""Seconds that open connections get when the server stops."""
STOPS = (signal.SIGINT, signal.SIGTERM)


async def _page(request: Request) -> Response:
    """A file of the page; its first page for every other path."""
    name = request.path_params.get("path", "") or "index.html"
    if f"/{name}".startswith(API):
        return error_response(404, "not_found", f"there is no operation /{name}")
    file = STATIC / name
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

    def route(endpoint: ApiEndpoint) -> Route:
        async def handle(request: Request) -> Response:
            return await endpoint.respond(ApiCall(request, services))

        return Route(endpoint.path, handle, methods=[endpoint.method])

    async def openapi(_: Request) -> Response:
        document = msgspec.json.encode(describe(ENDPOINTS))
        return Response(document, media_type="application/json")

    routes: list[BaseRoute] = [*map(route, ENDPOINTS), Route("/api/openapi.json", openapi)]
    routes += [_docs_route(), Route("/{path:path}", _page)]
    return Guard(Starlette(routes=routes), services.access)


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
    named: list[Json] = [_parameter(name, "path") for name in _PARAM.findall(endpoint.path)]
    named += [_parameter(each.name, "query", each.kind, each.text) for each in endpoint.params]
    schema: JsonObject = {"type": "string", "format": "binary"}
    if endpoint.response is not None:
        schema = _ref(endpoint.response)
    elif endpoint.events:
        events = [_ref(each) for each in endpoint.events]
        schema = {"description": "The data of the events.", "anyOf": [*events]}
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


def _parameter(name: str, place: str, kind: str = "string", text: str = "") -> Json:
    found: JsonObject = {"name": name, "in": place, "schema": {"type": kind}}
    if place == "path":
        found["required"] = True
    if text:
        found["description"] = text
    return found


def _ref(kind: type[msgspec.Struct]) -> JsonObject:
    return {"$ref": _SCHEMA.format(name=kind.__name__)}


class _ViewServer(uvicorn.Server):
    """Ends streams when the server stops: they would keep it from ending."""

    def __init__(
        self, config: uvicorn.Config, services: Services, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._services = services
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The address is printed when requests and signals are handled, not before."""
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """The original raises the signal again at the end: Ctrl-C would look like a failure."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in STOPS:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
        self._services.closing.set()
        super().handle_exit(sig, frame)


def serve(listener: socket.socket, services: Services, on_ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM."""

    async def run() -> None:
        config = uvicorn.Config(
            create(services),
            access_log=False,  # it would have the token in it
            log_level="warning",
            lifespan="off",
            server_header=False,
            date_header=False,
            ws="none",
            timeout_graceful_shutdown=END_SECONDS,
        )
        server = _ViewServer(config, services, on_ready)
        try:
            await server.serve(sockets=[listener])
        finally:
            await services.catalog.close()
            listener.close()

    asyncio.run(run())
