"""A web server on this machine that records the requests it gets."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Address:
    """Serves until ``close``."""

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
