"""Starts a server, calls it once, and writes the response to stdout as JSON.

It runs in the sandbox of the work that is checked, with corral's own Python. Its stdin has a
``ServerCall`` as JSON. It writes ``status`` and ``body`` (base64), or ``error``. What the server
writes goes to stderr. The server is not ended here: who started this program ends everything.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from typing import TypedDict

MOST = 1024 * 1024
"""Bytes of a response."""
PAUSE = 0.05
"""Seconds between two attempts to connect."""
HOSTS = ("127.0.0.1", "::1")


class ServerCall(TypedDict):
    start: str
    """The shell command of the server."""
    port: int
    """0: a free one."""
    target: str
    method: str
    headers: dict[str, str]
    body: str | None
    """In base64."""
    seconds: float


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOSTS[0], 0))
        number: int = one.getsockname()[1]
        return number


def wait_for(server: subprocess.Popen[bytes], port: int, deadline: float) -> tuple[str, str]:
    """The address at which the server listens, or why there is none."""
    while time.monotonic() < deadline:
        for host in HOSTS:
            try:
                socket.create_connection((host, port), 1.0).close()
            except OSError:
                continue
            return host, ""
        # A server that continues in the background exits with 0.
        if server.poll():
            return "", f"the server exited with {server.returncode} before it listened"
        time.sleep(PAUSE)
    return "", "the server never listened"


def call(asked: ServerCall) -> dict[str, str | int]:
    deadline = time.monotonic() + asked["seconds"]
    port = asked["port"] or free_port()
    server = subprocess.Popen(
        ["/bin/sh", "-c", asked["start"]],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={**os.environ, "PORT": str(port)},
    )
    host, error = wait_for(server, port, deadline)
    if not host:
        return {"error": error}
    left = max(0.1, deadline - time.monotonic())
    connection = http.client.HTTPConnection(host, port, timeout=left)
    body = None if asked["body"] is None else base64.b64decode(asked["body"])
    try:
        connection.request(asked["method"], asked["target"], body, asked["headers"])
        response = connection.getresponse()
        content = response.read(MOST + 1)
    except (OSError, ValueError, http.client.HTTPException) as problem:
        return {"error": f"the server gave no response: {problem or type(problem).__name__}"}
    if len(content) > MOST:
        return {"error": f"the response has over {MOST:,} bytes"}
    return {"status": response.status, "body": base64.b64encode(content).decode()}


if __name__ == "__main__":
    json.dump(call(json.load(sys.stdin)), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # without waiting for the server
