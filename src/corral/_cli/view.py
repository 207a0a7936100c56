"""``corral view``: a page over stored and running sessions, pipelines and batches."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from urllib.parse import quote

import click

from corral._cli.command_types import examples, plain_option
from corral._cli.options import completing
from corral._cli.ui.terminal import echo
from corral.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PACKAGES = ("markdown_it", "starlette", "uvicorn")


@click.command("view", epilog=examples("corral view", "corral view last --no-open --port 8080"))
@click.argument("run", required=False, shell_complete=completing("sessions"))
@plain_option("--port", "Listen on this port.", default=0, show_default="a free one")
@plain_option(
    "--listen ADDRESS",
    "Listen on this address; 0.0.0.0 is every network of this machine.",
    default="127.0.0.1",
)
@plain_option("--no-open", "Do not open a browser.")
def command(run: str | None, port: int, listen: str, no_open: bool) -> None:
    """Open a page that shows runs: those that are stored, and those that run now.

    RUN is a session, pipeline run or batch to show first. The page can be opened only with the
    printed address, which has a token in it. Ctrl-C ends the server; runs go on.
    """
    require()
    open_at = None
    if run is not None:
        from corral._runs import kinds, lookup

        found = lookup.find(run)
        page = kinds.kind_of(found).page
        open_at = f"#/{page}/{quote(found.id, safe='')}" if page else None
    serve_page(open_at, port=port, listen=listen, opens_browser=not no_open)


def serve_page(
    open_at: str | None = None,
    *,
    path: str = "",
    port: int = 0,
    listen: str = "127.0.0.1",
    opens_browser: bool = True,
) -> None:
    """Print the address of the page, open it in a browser and serve it until Ctrl-C. ``open_at`` is
    what it shows first; ``path`` leads to another page of the server."""
    from corral._system.http import asgi_server
    from corral._view import server
    from corral._view.auth import ServerAccess, is_everywhere
    from corral._view.calls import Services

    listen = "127.0.0.1" if listen == "localhost" else listen
    listener = asgi_server.bind(listen, port)
    bound: int = listener.getsockname()[1]
    access = ServerAccess.create(bound, listen, [socket.gethostname()])
    host = f"[{listen}]" if ":" in listen else listen
    if is_everywhere(listen):
        host = socket.gethostname()
    address = f"http://{host}:{bound}/{path}?token={access.token}"

    def ready() -> None:
        echo(address)
        if listen not in LOOPBACK:
            echo(
                f"corral: {listen} can be reached by other machines; who has this address can read"
                " every transcript, answer permissions and cancel runs. The connection is not"
                " encrypted.",
                err=True,
            )
        display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if opens_browser and (display or sys.platform == "darwin"):
            # Open the address through a file that only this user can read: the arguments of a
            # browser's process can be read by everyone.
            import threading
            import webbrowser

            from corral._system import paths

            folder = paths.temporary()
            for old in folder.glob("view-*.html"):
                old.unlink(missing_ok=True)
            file = folder / f"view-{os.getpid()}.html"
            text = f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">\n'
            paths.write_private(file, text.encode())
            # In a thread: some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()

    server.serve(listener, Services(access, _start_command, open_at), ready)


def _start_command(words: Sequence[str]) -> None:
    """Start a command of corral that outlives this one."""
    from corral._system import paths
    from corral._system.process import daemon

    folder = paths.make_dir(paths.home() / "view")
    name = f"{int(time.time())}-{os.urandom(3).hex()}"
    lock, log = folder / f"{name}.lock", folder / f"{name}.log"
    try:
        daemon.start("corral._cli.background", str(lock), *words, lock=lock, log=log)
    except OSError as error:
        raise ConfigError(f"the command cannot be started: {error}") from error


def require() -> None:
    """Raises ``ConfigError`` if the extra is not installed."""
    try:
        for name in _PACKAGES:
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "the view is not installed", hint="Install it: pip install 'corral[view]'"
        ) from error
