"""Serves an ASGI application on a socket with uvicorn, without its signal handlers, and ends it in
bounded time. What its requests need in common: the token, a complete body, a refusal.

uvicorn is an extra: it is imported when a server starts.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from corral.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

Message: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

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

    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        interface="asgi3", proxy_headers=False, server_header=False, date_header=False,
    )  # fmt: skip
    config.load()
    web = uvicorn.Server(config)  # its own serve() would take over the signals
    web.lifespan = config.lifespan_class(config)
    try:
        await web.startup(sockets=[listener])
        on_ready()
        await stop.wait()
        for listening in web.servers:
            listening.close()
        on_stop()
        if tasks := set(web.server_state.tasks):
            await asyncio.wait(tasks, timeout=END_TIMEOUT)
    finally:
        await _end(web, listener)


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
