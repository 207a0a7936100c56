"""One request of the API: its parameters, its body, and how its result or error is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, TypeVar, get_type_hints

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from corral._engine.dbos.database import is_installed
from corral._runs.log_windows import LogFile
from corral._view.auth import ServerAccess, error_response
from corral._view.catalog import Catalog
from corral._view.records import BodyTooLarge, Done, NotFound, ServedConflict, Unavailable
from corral.errors import CallerError, ConfigError, CorralError, NotPermitted, ResumeLost
from corral.values import decode_as

T = TypeVar("T")
BY = "the page of corral view"
"""Who answers or cancels a run here."""
_encoder = msgspec.json.Encoder()
_log = logging.getLogger("corral.view")


@dataclass(frozen=True)
class Services:
    """What all requests of a server share."""

    access: ServerAccess
    start_command: Callable[[Sequence[str]], None]
    """Starts a command of corral in the background. Blocking. Raises ``ConfigError``."""
    open_at: str | None = None
    """The place on the page that is shown first."""
    catalog: Catalog = field(default_factory=Catalog)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: streams end."""


@dataclass(frozen=True)
class HttpCall:
    """One request of an HTTP API."""

    request: Request
    max_body: ClassVar[int] = 1024 * 1024
    """Bytes of the body of a request."""

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def text(self, name: str) -> str | None:
        """A parameter of the address; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def number(self, name: str, default: int) -> int:
        """A whole number of the address; ``last`` is -1. Raises ``ConfigError``."""
        return _number(name, self.text(name), default)

    def path_number(self, name: str) -> int:
        """A whole number of the path. Raises ``ConfigError``."""
        return _number(name, self.path(name), 0)

    @property
    def cursor(self) -> int | None:
        """Where a stream goes on."""
        given = self.request.headers.get("last-event-id") or self.text("after")
        return None if given is None else max(0, _number("after", given, 0))

    async def data(self) -> bytes:
        """The body. Raises ``BodyTooLarge``, before it is read if its length is given."""
        length = self.request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:15]) > self.max_body:
            raise BodyTooLarge(f"the body is longer than {self.max_body:,} bytes")
        data = bytearray()
        async for piece in self.request.stream():
            data += piece
            if len(data) > self.max_body:
                raise BodyTooLarge(f"the body is longer than {self.max_body:,} bytes")
        return bytes(data)

    async def body(self, kind: type[T]) -> T:
        """The decoded body. Raises ``ConfigError``."""
        data = await self.data()
        try:
            return decode_as(data or b"{}", kind)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"the body is not valid: {error}") from error


@dataclass(frozen=True)
class ApiCall(HttpCall):
    """One request of the page's API."""

    services: Services

    @property
    def catalog(self) -> Catalog:
        return self.services.catalog

    async def database(self) -> str | None:
        """The database of the run; None is the default one. Raises ``NotFound``."""
        given = self.text("db")
        if given is None:
            if not is_installed():
                raise NotFound(
                    "pipelines and batches need the engine, which is not installed",
                    hint="Install it: pip install 'corral[engine]'",
                )
            return None
        if given not in await self.catalog.database_names():
            raise NotFound(f"the database {given!r} is not known")
        return given

    async def read_log(self, path: Callable[[], Path], read: Callable[[LogFile], T]) -> T:
        """What ``read`` returns for a log. Both functions are called in a thread."""

        def run() -> T:
            with LogFile(path()) as log:
                return read(log)

        return await asyncio.to_thread(run)

    async def start_command(self, *words: str) -> None:
        """Start a command of corral that goes on when this server ends. Raises ``ConfigError``."""
        await asyncio.to_thread(self.services.start_command, words)


def _number(name: str, given: str | None, default: int) -> int:
    if given is None:
        return default
    if given == "last":
        return -1
    if not given.isdecimal() or len(given) > 15:
        raise ConfigError(f"{name} must be a whole number")
    return int(given)


@dataclass(frozen=True)
class Param:
    """A parameter of the address."""

    name: str
    text: str
    kind: Literal["string", "integer"] = "string"
    minimum: int | None = None


DB = Param("db", "The database, if it is not the default one.")
Handler = Callable[..., Awaitable[msgspec.Struct | Response]]
"""Gets the call, and the body if it has a parameter for it."""
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True)
class ApiEndpoint:
    """One operation of the API. Its name, its body and its response are those of the function."""

    method: Literal["GET", "POST"]
    path: str
    text: str
    handler: Handler
    params: tuple[Param, ...] = ()
    media: str = "application/json"
    events: tuple[type[msgspec.Struct], ...] = ()
    """Of a stream: the data of its events."""

    @property
    def name(self) -> str:
        return self.handler.__name__

    @cached_property
    def body(self) -> type[msgspec.Struct] | None:
        return get_type_hints(self.handler).get("body")

    @property
    def response(self) -> type[msgspec.Struct] | None:
        """None: not JSON."""
        kind = get_type_hints(self.handler)["return"]
        return None if issubclass(kind, Response) else kind

    async def respond(self, call: HttpCall) -> Response:
        """Carry out the operation."""
        try:
            if self.method == "GET":
                result = await self.handler(call)
            else:
                body = await call.body(self.body or Done)
                result = await (self.handler(call, body) if self.body else self.handler(call))
        except CorralError as error:
            problem = getattr(error, "problem", None)
            status, code = _status_of(error), getattr(problem, "code", error.code)
            if status == 404:
                code = "not_found"
            return error_response(status, code, error.message, error.hint)
        except ClientDisconnect:
            return error_response(400, "disconnected", "the client left before its body was read")
        except FileNotFoundError:
            return error_response(404, "not_found", "there is no log")
        except OSError as error:
            return error_response(500, "storage", f"the file cannot be read: {error.strerror}")
        except Exception:
            _log.exception("%s %s failed", self.method, self.path)
            return error_response(500, "internal", "the server failed; its log says why")
        if isinstance(result, Response):
            return result
        return Response(_encoder.encode(result), media_type="application/json")


def _status_of(error: CorralError) -> int:
    statuses: tuple[tuple[bool, int], ...] = (
        (isinstance(error, NotFound | ResumeLost), 404),
        (getattr(error, "problem", None) is not None or isinstance(error, ServedConflict), 409),
        (isinstance(error, BodyTooLarge), 413),
        (isinstance(error, Unavailable), 503),
        (isinstance(error, NotPermitted) and error.retryable, 429),
        (isinstance(error, NotPermitted), 403),
        (isinstance(error, CallerError), 400),
    )
    return next((status for holds, status in statuses if holds), 500)


class PathOperations:
    """All operations of one path, as an ASGI application. Another method is refused with those that
    there are."""

    def __init__(
        self,
        endpoints: Sequence[ApiEndpoint],
        respond: Callable[[ApiEndpoint, Request], Awaitable[Response]],
    ) -> None:
        self._of_method: Mapping[str, ApiEndpoint] = {each.method: each for each in endpoints}
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._of_method.get(method)
        if endpoint is None:
            response = wrong_method(self._of_method)
        else:
            response = await self._respond(endpoint, Request(scope, receive))
        await response(scope, receive, send)


def operation_routes(
    endpoints: Sequence[ApiEndpoint],
    respond: Callable[[ApiEndpoint, Request], Awaitable[Response]],
) -> list[Route]:
    """The routes of operations. ``respond`` carries one out."""
    paths = dict.fromkeys(endpoint.path for endpoint in endpoints)
    return [
        Route(path, PathOperations([each for each in endpoints if each.path == path], respond))
        for path in paths
    ]


def wrong_method(allowed: Iterable[str]) -> Response:
    methods = {*allowed}
    listed = ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
    response = error_response(405, "method", f"the methods of this path are {listed}")
    response.headers["Allow"] = listed
    return response


async def on_http_error(_: Request, error: Exception) -> Response:
    """The response to a path or a method that there is not, as JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405 and isinstance(error, HTTPException):
        return wrong_method((error.headers or {}).get("Allow", "GET").split(", "))
    return error_response(status, "not_found", "there is no operation of this path")


class Endpoints(list[ApiEndpoint]):
    """Operations in the order of their functions, which these decorators add."""

    def get(
        self,
        path: str,
        text: str,
        *params: Param,
        media: str = "application/json",
        events: tuple[type[msgspec.Struct], ...] = (),
    ) -> Callable[[H], H]:
        media = "text/event-stream" if events else media
        return lambda handler: self._add(
            handler, ApiEndpoint("GET", path, text, handler, params, media, events)
        )

    def post(self, path: str, text: str, *params: Param) -> Callable[[H], H]:
        return lambda handler: self._add(handler, ApiEndpoint("POST", path, text, handler, params))

    def _add(self, handler: H, endpoint: ApiEndpoint) -> H:
        self.append(endpoint)
        return handler


def event_stream(source: AsyncGenerator[bytes]) -> Response:
    """A response of server-sent events."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(source, media_type="text/event-stream", headers=headers)
