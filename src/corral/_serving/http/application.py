"""The ASGI application of the HTTP API for services.

Who may do what: a request names its client by a bearer token, and nothing else (no cookie, no
address), so a page in a browser can do nothing that its author could not do without it.
``/health``, ``/ready``, ``/metrics`` and ``/openapi.json`` need no token: they name no client, no
run and no text.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from corral._serving.http.operations import ENDPOINTS, ServiceCall
from corral._serving.http.server import RunServer
from corral._view.auth import error_response
from corral._view.calls import ApiEndpoint, on_http_error, operation_routes
from corral._view.server import describe
from corral.values import JsonObject

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_ABOUT = (
    "Runs of agents for services. Send the client's token as `Authorization: Bearer TOKEN`."
    " A client sees its own runs only, and can narrow what it may do, never widen it."
)
_METRICS = (
    ("runs_started_total", "counter", "Runs that were started.", "started"),
    ("runs_ended_total", "counter", "Runs that have ended, by their status.", "ended"),
    ("streams_open", "gauge", "Streams of events that are open.", "streams"),
    ("responses_total", "counter", "Responses, by their status.", "responses"),
)


def openapi() -> JsonObject:
    """The OpenAPI document."""
    return describe(ENDPOINTS, "corral serve", _ABOUT)


@functools.cache
def _document() -> bytes:
    """Made once: who asks for it needs no token."""
    return msgspec.json.encode(openapi())


class ServeApp:
    """An ASGI application. ``lifespan`` runs it in another application that mounts it; a server
    that it is given to directly runs it by itself."""

    def __init__(self, service: RunServer, drain: float = 0.0) -> None:
        self.service = service
        self._drain = drain
        public: dict[str, Callable[[Request], Response]] = {
            "/health": lambda _: PlainTextResponse("ok\n"),
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/openapi.json": lambda _: Response(_document(), media_type="application/json"),
        }
        routes = [Route(path, function) for path, function in public.items()]
        self._app = Starlette(
            routes=[*routes, *operation_routes(ENDPOINTS, self._respond)],
            exception_handlers={HTTPException: on_http_error},
            lifespan=self.lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Serves runs while the block is open. At its end, runs get the time of ``drain``."""
        async with self.service:
            yield
            await self.service.drain(self._drain)

    async def _respond(self, endpoint: ApiEndpoint, request: Request) -> Response:
        response = await self._carry_out(endpoint, request)
        response.headers.update(_HEADERS)
        self.service.counts["responses", str(response.status_code)] += 1
        return response

    async def _carry_out(self, endpoint: ApiEndpoint, request: Request) -> Response:
        if not self.service.is_entered:
            return error_response(
                503,
                "unavailable",
                "the server has not started, or has ended",
                "An application that mounts this one needs its lifespan: corral docs serve.",
            )
        client = await self.service.client(request.headers.get("authorization", ""))
        if client is None:
            response = error_response(401, "token", "the token is missing, wrong or expired")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if client.open_requests >= self.service.most_requests:
            response = error_response(
                429,
                "too_many_requests",
                f"{client.open_requests} requests of this client are open, and no more may be",
                "Follow fewer runs at once, or ask for their states without wait.",
            )
        else:
            with client.open_request():
                response = await endpoint.respond(ServiceCall(request, client, self.service))
        if response.status_code in (429, 503):
            response.headers["Retry-After"] = "1"
        return response

    def _ready(self, _: Request) -> Response:
        if self.service.is_open:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", 503)

    def _metrics(self, _: Request) -> Response:
        """In the text format of Prometheus."""
        lines = [
            "# HELP corral_runs_running Runs that have not ended.",
            "# TYPE corral_runs_running gauge",
            f"corral_runs_running {self.service.running}",
        ]
        for metric, kind, text, counted in _METRICS:
            lines += [f"# HELP corral_{metric} {text}", f"# TYPE corral_{metric} {kind}"]
            found = {k: n for (name, k), n in self.service.counts.items() if name == counted}
            for label, number in (found or {"": 0}).items():
                labels = f'{{status="{label}"}}' if label else ""
                lines.append(f"corral_{metric}{labels} {number}")
        return PlainTextResponse(
            "\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8"
        )
