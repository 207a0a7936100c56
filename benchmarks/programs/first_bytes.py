"""Time to the first byte of a model's response: ``first_bytes.py COUNT EVENTS NAME=URL=KEY …``.

The ways take turns, one request each, over connections that stay open. The request is as large as
the first one of the Gemini CLI. Prints the seconds of all requests by name, and under ``count`` how
many responses came to their end.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from urllib.parse import urlsplit

PATH = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
SIZE = 29_000
END = b"\r\n0\r\n\r\n"


class Way:
    """A connection, and the request that is sent over it."""

    def __init__(self, url: str, key: str, events: int) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection(("127.0.0.1", parts.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        text = f"events={events} packed. " + "Instructions of an agent. " * (SIZE // 26)
        body = json.dumps({"contents": [{"role": "user", "parts": [{"text": text}]}]}).encode()
        head = (
            f"POST {parts.path}{PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"x-goog-api-key: {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body

    def measure(self) -> float:
        """Seconds to the first byte; the response is read to its end."""
        started = time.perf_counter()
        self._socket.sendall(self._request)
        data = self._socket.recv(65536)
        seconds = time.perf_counter() - started
        assert data.startswith(b"HTTP/1.1 200"), data
        while not data.endswith(END):
            more = self._socket.recv(65536)
            assert more, "the connection was closed"
            data = data[-len(END) :] + more
        return seconds


def main() -> None:
    count, events = int(sys.argv[1]), int(sys.argv[2])
    ways: dict[str, Way] = {}
    for given in sys.argv[3:]:
        name, url, key = given.split("=")
        ways[name] = Way(url, key, events)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 1):
        for name, way in ways.items():
            took = way.measure()
            if number:  # the first one loads modules
                seconds[name].append(took)
    print(json.dumps({"seconds": seconds, "count": sum(map(len, seconds.values()))}))


if __name__ == "__main__":
    main()
