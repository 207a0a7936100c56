"""``corral serve``: agents for services, behind an HTTP API with a token for each client."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from corral._cli.command_types import DURATION, SectionedCommand, enable_gc, examples, option
from corral._cli.options import FAKE
from corral._cli.served_options import ServedFlags, read_allowance, served_options
from corral._cli.ui.terminal import echo
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._serving.http.server import RunServer

_PACKAGES = ("starlette", "uvicorn")


class ServeFlags(ServedFlags):
    """The options of the command."""

    clients: str | None
    drain: float
    port: int
    listen: str


@click.command(
    "serve",
    cls=SectionedCommand,
    epilog=examples(
        "corral serve --approve reads --max-cost 20",
        "corral serve --clients clients.toml --listen 0.0.0.0 --port 8000",
    ),
)
@served_options("corral serve")
@option(
    "Callers",
    "--clients FILE",
    "A token and limits for each client (TOML).  [default: one new token]",
)
@option(
    "Server",
    "--drain TIME",
    "At the first signal, time for running runs to end.",
    type=DURATION,
    default="0s",
)
@option("Server", "--port", "Listen on this port.", default=0, show_default="a free one")
@option("Server", "--listen ADDRESS", "Listen on this address.", default="127.0.0.1")
@FAKE
def command(**flags: Unpack[ServeFlags]) -> None:
    """Serve an HTTP API with which services run agents: start, stream, answer, cancel.

    The options say what all clients together may do; the file of clients narrows it for each. The
    first SIGTERM or Ctrl-C starts no more runs and lets the others end for --drain; the second ends
    them at once. `corral docs serve` describes the API.
    """
    try:
        for name in _PACKAGES:
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "the server is not installed", hint="Install it: pip install 'corral[view]'"
        ) from error
    from corral._serving.http.clients import one_client, read_clients
    from corral._serving.http.server import RunServer
    from corral._system import threads
    from corral._system.clock import new_secret
    from corral._system.http import asgi_server

    token, file = "", None
    if flags["clients"] is None:
        token = new_secret()
        client = one_client(token)
        clients = {client.name: client}
    else:
        file = Path(flags["clients"])
        clients = read_clients(file)
    service = RunServer(read_allowance(flags, "corral serve"), clients, file)
    listener = asgi_server.bind(flags["listen"], flags["port"])
    host, port = listener.getsockname()[:2]

    def ready() -> None:
        echo(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        if token:
            echo(f"Authorization: Bearer {token}")
        if host not in ("127.0.0.1", "::1"):
            echo(
                f"corral: {host} can be reached by other machines; the connection is not encrypted",
                err=True,
            )

    enable_gc()
    threads.run_event_loop(_serve(service, listener, flags["drain"], ready))


async def _serve(
    service: RunServer, listener: socket.socket, drain: float, on_ready: Callable[[], None]
) -> None:
    """Serve until a signal. The first one lets runs end for ``drain`` seconds, while everything but
    new runs is served; a second one ends them at once."""
    from corral._cli.ui.signals import signals
    from corral._serving.http.application import ServeApp
    from corral._system.http import asgi_server

    stopped, stop = asyncio.Event(), asyncio.Event()
    draining: asyncio.Task[None] | None = None

    def on_signal() -> None:
        if draining is not None:
            draining.cancel()
        stopped.set()

    async def end() -> None:
        nonlocal draining
        await stopped.wait()
        draining = asyncio.create_task(service.drain(drain))
        await asyncio.wait([draining])
        service.end_streams()
        stop.set()

    with signals(on_signal):
        async with service, asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(end())
            await asgi_server.serve(ServeApp(service), listener, on_ready=on_ready, stop=stop)
            ending.cancel()
