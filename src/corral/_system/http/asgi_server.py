"""Serves an ASGI application on a socket with uvicorn, without its signal handlers, and ends it in
bounded time. What its requests need in common: the token, a complete body, a refusal.

All servers of corral are served here, so what holds for each of them stands here: the limits of
connections and requests, ``/health``, and that no request has two lengths.

uvicorn is an extra: it is imported when a server starts.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from corral._core.nesting import decode_json, has_more_containers
from corral._system.platform import most_descriptors
from corral.errors import ConfigError
from corral.values import Json

if TYPE_CHECKING:
    import uvicorn

Message: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

HEALTH = "/health"
"""Needs no token, and is answered before the application and its limits."""
MOST_CONNECTIONS = 512
"""Fewer if the process may have few descriptors: half of them are left to runs and files."""
FEWEST_CONNECTIONS = 16
ACCEPTED_AT_ONCE = 16
"""Connections that asyncio accepts before it looks at any: more than descriptors that are left
would stop it for a second."""
BACKLOG = 1024
"""Connections that the system holds until they are accepted."""
MOST_CONTAINERS = 100_000
"""Lists and objects in a body."""
QUICK_BODY = 64 * 1024
"""Bytes that are decoded at once."""
END_TIMEOUT = 5.0
"""Seconds that requests get to end once the server stops; then it ends without them."""


def bind(host: str, port: int) -> socket.socket:
    """The socket of a server; port 0 is any free one. Raises ``ConfigError``."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(kind, socket.SOCK_STREAM)
    try:
        # Without this a port stays blocked for a minute after the server has stopped.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} is in use", hint="Choose another one, or leave --port out."
            ) from error
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="--listen takes an address of this machine.",
        ) from error
    except OverflowError as error:
        listener.close()
        raise ConfigError("--port must be between 0 and 65535") from error
    listener.set_inheritable(False)
    return listener


async def serve(
    app: App,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    stop: asyncio.Event,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until ``stop`` is set. Then no connection is accepted, ``on_stop`` is called to end
    what requests wait for, and open requests get ``END_TIMEOUT`` seconds. Closes the socket."""
    import uvicorn

    from corral._system.http.connection_limits import ConnectionLimits, LimitedProtocol

    most = most_connections()
    config = uvicorn.Config(
        _Entrance(app, most_requests()), http="h11", ws="none", lifespan="off", log_config=None,
        access_log=False, interface="asgi3", proxy_headers=False, server_header=False,
        date_header=False, backlog=ACCEPTED_AT_ONCE,
    )  # fmt: skip
    config.load()
    limited: Any = partial(LimitedProtocol, limits=ConnectionLimits(most))
    config.http_protocol_class = limited
    web = uvicorn.Server(config)  # its own serve() would take over the signals
    web.lifespan = config.lifespan_class(config)
    try:
        await web.startup(sockets=[listener])
        listener.listen(BACKLOG)
        on_ready()
        await stop.wait()
        for listening in web.servers:
            listening.close()
        on_stop()
        if tasks := set(web.server_state.tasks):
            await asyncio.wait(tasks, timeout=END_TIMEOUT)
    finally:
        await _end(web, listener)


def most_connections() -> int:
    """Connections of a server in this process."""
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, most_descriptors() // 2))


def most_requests() -> int:
    """Requests that a server works on at once."""
    return most_connections() // 2


class _Entrance:
    """What each request passes before the application."""

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._left = most
        """Requests that may be worked on beside those that are."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        if {b"transfer-encoding", b"content-length"} <= names:
            # A program on the way may have read another length, and another request after it.
            return await refuse(send, 400, [(b"connection", b"close")])
        if scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
            return await respond(send, 200, b"ok\n", b"text/plain; charset=utf-8")
        if not self._left:
            return await refuse(send, 503, [(b"retry-after", b"1"), (b"connection", b"close")])
        self._left -= 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._left += 1


async def _end(web: uvicorn.Server, listener: socket.socket) -> None:
    listener.close()
    for connection in list(web.server_state.connections):
        connection.transport.abort()
    left = set(web.server_state.tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_TIMEOUT)
    await asyncio.sleep(0)  # the transports close in the loop's next round


def has_token(scope: Message, token: str) -> bool:
    """Whether a request has the token, as ``Authorization: Bearer``."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    given = dict(headers).get(b"authorization", b"")
    return hmac.compare_digest(given, f"Bearer {token}".encode())


async def refuse(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A response without a body."""
    await send({"type": "http.response.start", "status": status,
                "headers": [*headers, (b"content-length", b"0")]})  # fmt: skip
    await send({"type": "http.response.body", "body": b""})


async def respond(send: Send, status: int, body: bytes, kind: bytes) -> None:
    """A response with a body."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def decode_body(body: bytes) -> Json:
    """The JSON of a body. A large one is decoded in a thread, one at a time, while other requests
    are served. Raises ``msgspec.DecodeError`` and ``UnicodeDecodeError``."""
    if has_more_containers(body, MOST_CONTAINERS):
        raise msgspec.DecodeError(f"it has more than {MOST_CONTAINERS:,} lists and objects")
    if len(body) <= QUICK_BODY:
        return decode_json(body)
    return await asyncio.get_running_loop().run_in_executor(_decoder(), decode_json, body)


@cache
def _decoder() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "corral-decode")


async def read_body(receive: Receive, largest: int) -> bytes | None:
    """The complete body; None if it is larger."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > largest:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
