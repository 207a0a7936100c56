"""A real HTTP server that receives the messages of ``notify``."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, NamedTuple


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Webhook:
    """``received`` has what came; ``answers`` are the next statuses, then it is 204."""

    def __init__(self) -> None:
        self.received: Queue[Received] = Queue()
        self.answers: list[int] = []
        self.location = ""
        self.url = ""

    def next(self) -> Received:
        return self.received.get(timeout=60)


@contextmanager
def webhook() -> Generator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.received.put(Received(dict(self.headers), body))
            self.send_response(hook.answers.pop(0) if hook.answers else 204)
            self.send_header("Content-Length", "0")
            self.send_header("Location", hook.location)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
