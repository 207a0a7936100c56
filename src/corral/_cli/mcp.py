"""``corral mcp``: agents, models and pipelines as tools for other agents."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Unpack

import click

from corral._cli.command_types import SectionedCommand, enable_gc, examples, option
from corral._cli.options import FAKE
from corral._cli.served_options import ServedFlags, read_allowance, served_options
from corral._cli.ui.terminal import echo
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._serving.allowance import Allowance

TOKEN = "CORRAL_MCP_TOKEN"  # noqa: S105 (the name of a variable)


class McpFlags(ServedFlags):
    """The options of the command."""

    keep_runs: bool
    http: bool
    port: int
    listen: str


@click.command(
    "mcp",
    cls=SectionedCommand,
    epilog=examples("corral mcp --agent claude --approve reads", "corral mcp --http --port 8000"),
)
@served_options("corral mcp")
@option("Callers", "--keep-runs", "Runs go on when the caller goes away.")
@option("Server", "--http", f"Serve HTTP, with a token: {TOKEN}, or a new one.")
@option("Server", "--port", "Listen on this port.", default=0, show_default="a free one")
@option("Server", "--listen ADDRESS", "Listen on this address.", default="127.0.0.1")
@FAKE
def command(**flags: Unpack[McpFlags]) -> None:
    """Serve the Model Context Protocol: other agents run agents, models and pipelines as tools.

    A client starts this command and speaks with it on standard input and output. The options say
    what its callers may do. A caller can ask for less, never for more: without options, agents read
    the files below the current folder. `corral docs mcp-server` has the settings of clients.
    """
    allowance = read_allowance(flags, "corral mcp", keeps_runs=flags["keep_runs"])
    enable_gc()
    if flags["http"]:
        _serve_http(allowance, flags)
        return
    if flags["port"] or flags["listen"] != "127.0.0.1":
        raise ConfigError("--port and --listen need --http")
    if sys.stdin.isatty():
        echo("corral: stdin is a terminal; a client starts this command (corral docs mcp-server)",
             err=True)  # fmt: skip
    if allowance.keeps_runs:
        from corral._system.process.daemon import leave_session

        leave_session()
    _serve_streams(allowance)


def _serve_streams(allowance: Allowance) -> None:
    from corral._cli.ui.signals import signals
    from corral._serving.caller_runs import CallerRuns
    from corral._serving.mcp.server import McpService, serve_streams
    from corral._serving.mcp.tools import CallerTools
    from corral._system import standard_streams, threads

    async def serve() -> None:
        stop = asyncio.Event()
        with standard_streams.claimed() as streams, signals(stop.set):
            async with CallerRuns(allowance) as runs:
                await serve_streams(McpService(CallerTools(runs)), streams, stop)
                # A client that closes the connection may have its runs kept; a signal ends them.
                ending = asyncio.create_task(runs.end())
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                await runs.end(keeps=False)
                await ending

    threads.run_event_loop(serve())


def _serve_http(allowance: Allowance, flags: McpFlags) -> None:
    try:
        import uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ConfigError(
            "--http needs uvicorn", hint="Install it: pip install 'corral[view]'"
        ) from error
    from corral._cli.ui.signals import signals
    from corral._serving.caller_runs import CallerRuns
    from corral._serving.mcp.http_app import PATH, McpApp
    from corral._serving.mcp.server import McpService
    from corral._serving.mcp.tools import CallerTools
    from corral._system import threads
    from corral._system.clock import new_secret
    from corral._system.http import asgi_server

    token, is_new = os.environ.get(TOKEN), False
    if token is None:
        token, is_new = new_secret(), True
    elif len(token) < 16:
        raise ConfigError(f"{TOKEN} must have at least 16 characters")
    listener = asgi_server.bind(flags["listen"], flags["port"])
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    def ready() -> None:
        echo(f"http://{shown}:{port}{PATH}")
        echo(f"Authorization: Bearer {token if is_new else f'${TOKEN}'}")
        if host not in ("127.0.0.1", "::1"):
            echo(f"corral: {host} can be reached by other machines; the connection is not"
                 " encrypted", err=True)  # fmt: skip

    async def serve() -> None:
        stop = asyncio.Event()
        with signals(stop.set):
            async with CallerRuns(allowance) as runs:
                app = McpApp(McpService(CallerTools(runs)), token)
                await asgi_server.serve(
                    app, listener, on_ready=ready, stop=stop, on_stop=app.cancel_all
                )
                await runs.end(keeps=False)

    threads.run_event_loop(serve())
