"""Runs the server: the socket, uvicorn, and a quick end."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import types
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from corral.errors import ConfigError
from corral.view import app
from corral.view.calls import Services

END_SECONDS = 1
"""Seconds that open connections get when the server stops."""


STOPS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """The socket of the server; port 0 is any free one. Raises ``ConfigError``."""
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
            app.create(services),
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
