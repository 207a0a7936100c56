"""What the kits share: the agent that is checked or attacked, tables in Markdown, and a web server
that records the requests it gets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._system import config
from corral.options import RunOptions


def agent_spec(name: str) -> AgentSpec:
    """The spec of an agent. ``vendor:model`` is the built-in agent with that vendor's model."""
    found = config.find_agent(name)
    if found.for_run is not None and registry.names_a_model(name):
        return found.for_run(RunOptions.build(found.name, {"model": name}))
    return found


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(c.ljust(w) for c, w in zip(cells, widths, strict=True))} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(head), rule, *map(line, rows)])


class RecordingServer:
    """A web server on this machine that records requests. Serves until ``close``."""

    def __init__(self) -> None:
        visits: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                visits.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.visits = visits
        """The paths that were requested."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            # How often it looks whether it was closed, in seconds.
            target=self._server.serve_forever,
            args=(0.02,),
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
