"""A proxy that refuses every request and records it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager


class RefusingProxy:
    """``env`` directs all requests of a program to this proxy, except those to this machine."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.requests: list[str] = []
        """The first line of each request, such as ``CONNECT example.org:443 HTTP/1.1``."""
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        near = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        self.env = {**dict.fromkeys(names, url), **near}

    def serve(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            with visitor, contextlib.suppress(OSError):
                visitor.settimeout(60)
                line = visitor.recv(4096).partition(b"\r\n")[0]
                self.requests.append(line.decode("utf-8", "replace"))
                visitor.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def refusing_proxy() -> Generator[RefusingProxy, None, None]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = RefusingProxy(listener)
    thread = threading.Thread(target=found.serve, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
