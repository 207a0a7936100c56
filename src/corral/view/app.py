"""The application: the operations of the API, and the page."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from corral.view import openapi
from corral.view.auth import API, Guard, error_response
from corral.view.calls import Call, Endpoint, Services, respond
from corral.view.routes import (
    batches,
    bundles,
    comparisons,
    control,
    pipelines,
    runs,
    sessions,
    usage,
)

STATIC = Path(str(files("corral.view"))) / "static"
_MEDIA = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
ENDPOINTS: tuple[Endpoint, ...] = (
    *runs.ENDPOINTS,
    *sessions.ENDPOINTS,
    *control.ENDPOINTS,
    *pipelines.ENDPOINTS,
    *batches.ENDPOINTS,
    *comparisons.ENDPOINTS,
    *usage.ENDPOINTS,
    *bundles.ENDPOINTS,
)


async def _openapi(_: Request) -> Response:
    return Response(openapi.document(ENDPOINTS), media_type="application/json")


async def _page(request: Request) -> Response:
    """A file of the page; its first page for every other path."""
    name = request.path_params.get("path", "") or "index.html"
    if f"/{name}".startswith(API):
        return error_response(404, "not_found", f"there is no operation /{name}")
    file = STATIC / name
    is_inside = STATIC in file.resolve().parents
    if not is_inside or file.suffix not in _MEDIA or not file.is_file():
        file = STATIC / "index.html"
        if not file.is_file():
            return PlainTextResponse("The page is missing in this installation.", 404)
    headers = {"Cache-Control": "no-cache"}
    return FileResponse(file, media_type=_MEDIA[file.suffix], headers=headers)


def _route(endpoint: Endpoint, services: Services) -> Route:
    async def handle(request: Request) -> Response:
        return await respond(endpoint, Call(request, services))

    return Route(endpoint.path, handle, methods=[endpoint.method])


def create(services: Services) -> ASGIApp:
    """The application, with its guard."""
    routes = [_route(endpoint, services) for endpoint in ENDPOINTS]
    routes.append(Route("/api/openapi.json", _openapi))
    routes.append(Route("/{path:path}", _page))
    return Guard(Starlette(routes=routes), services.access)
