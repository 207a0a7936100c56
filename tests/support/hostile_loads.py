"""Hostile loads on the public servers, and whether ``/health`` is answered meanwhile.

``python -m support.hostile_loads`` (in ``tests``) prints how long the answers take. Everything is
on loopback; the number of connections and the time of each load are bounded. The server has 200
descriptors, fewer than the connections of most loads.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.scripted_agent import PROGRAM

DESCRIPTORS = 200
ATTACKERS = 4
"""Threads."""
PATIENCE = 60.0
"""Seconds for an answer, or the end of a server."""
CUT = struct.pack("ii", 1, 0)
TOKEN = "token-of-a-hostile-client"


class Target(NamedTuple):
    """A server of one kind."""

    kind: str
    port: int
    token: str
    process: subprocess.Popen[str]
    log: Path


def _head(target: Target, *lines: str, path: str = "/", method: str = "GET") -> bytes:
    first = (f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{target.port}")
    return "\r\n".join([*first, *lines, "", ""]).encode()


def _call(target: Target, request: dict[str, object]) -> bytes:
    """A complete request to start a run, with the token."""
    path, body = "/v1/runs", json.dumps(request)
    if target.kind == "mcp":
        params = {"name": "start", "arguments": request}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        path, body = "/mcp", json.dumps(call)
    elif target.kind == "view":
        path = "/api/sessions/none/cancel"
    lines = (f"Authorization: Bearer {target.token}", "Content-Type: application/json",
             f"Content-Length: {len(body)}")  # fmt: skip
    return _head(target, *lines, path=path, method="POST") + body.encode()


def _tree(keyword: str) -> dict[str, object]:
    """Nine levels; each part of one refers eight times to the next."""
    defs = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(9)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, "d9": {"type": "integer"}}}


def _nested() -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(16):
        schema = {"anyOf": [schema, schema]}
    return schema


SCHEMAS: tuple[dict[str, object], ...] = (
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "string", "pattern": "(a{0,30}){0,30}b"},
    _tree("anyOf"),
    _tree("allOf"),
    _nested(),
)


def _schemas(target: Target) -> bytes:
    """Runs whose answer is a text that makes the pattern slow."""
    prompt = f'init\ntext "{"a" * 5000}!"\nresult'
    calls = (_call(target, {"prompt": prompt, "output_schema": schema}) for schema in SCHEMAS)
    return b"".join(calls)


def _large_bodies(target: Target) -> bytes:
    nested: list[object] = [[[n], {"a": [n]}] for n in range(100_000)]
    folders = [f"folder/{n}" for n in range(300_000)]
    requests: tuple[dict[str, object], ...] = (
        {"output_schema": {"enum": nested}},
        {"policy": {"preset": "reads", "writable": folders}},
        {"agent": "gemini" * 500_000},
        {"cwd": "../" * 1_000_000},
        {"timeout": "1h" * 1_000_000},
        {"prompt" * 500_000: 1},
    )
    return b"".join(_call(target, {"prompt": "x", **each}) for each in requests)


class Load(NamedTuple):
    """What one connection sends. It is opened again when the server closes it."""

    first: Callable[[Target], bytes]
    more: bytes = b""
    """Sent again and again."""
    connections: int = 280
    reads: bool = True
    cut: bool = False
    """The connection is reset at once."""


LOADS: dict[str, Load] = {
    "connections that send nothing": Load(lambda _: b""),
    "half a request line": Load(lambda _: b"GET / HT"),
    "a header, byte by byte": Load(lambda t: _head(t)[:-2] + b"X-A: ", more=b"a"),
    "half a body": Load(
        lambda t: _head(t, "Content-Length: 900000", path="/mcp", method="POST"), more=b" "
    ),
    "two lengths": Load(
        lambda t: (
            _head(t, "Content-Length: 4", "Transfer-Encoding: chunked", method="POST")
            + b"0\r\n\r\n"
            + _head(t, path="/smuggled")
        )
    ),
    "no HTTP": Load(lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50 + b"\r\n\r\n"),
    "the largest headers": Load(lambda t: _head(t, 'Cookie: a="' + "\\" * 15_000)),
    "odd origins and upgrades": Load(
        lambda t: _head(
            t,
            "Origin: http://[",
            f"Authorization: Bearer {t.token}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            path="/mcp",
            method="POST",
        )
    ),
    "connections that are cut": Load(_head, cut=True),
    "responses that are not read": Load(
        lambda t: _head(t, path="/openapi.json") * 500, reads=False, connections=120
    ),
    "hostile schemas": Load(_schemas, connections=4),
    "large bodies": Load(_large_bodies, connections=4),
}


class _Attack:
    """One thread: its connections, until it has to stop."""

    def __init__(self, target: Target, load: Load, stop: threading.Event) -> None:
        self._target, self._load, self._stop = target, load, stop
        self._data = load.first(target)
        self._count = max(1, load.connections // ATTACKERS)
        self._open: dict[socket.socket, bytes] = {}
        """With what is left to send."""
        self.has_started = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop.is_set():
                while len(self._open) < self._count and self._connect():
                    pass
                self.has_started.set()
                readable, writable, _ = select.select(
                    [*self._open] if self._load.reads else [],
                    [each for each, left in self._open.items() if left],
                    [],
                    0.02,
                )
                for each in {*readable, *writable}:
                    self._exchange(each, each in readable)
                if self._load.more:
                    for each, left in self._open.items():
                        self._open[each] = left or self._load.more
                    self._stop.wait(0.05)
        finally:
            self.has_started.set()
            for each in self._open:
                each.close()

    def _connect(self) -> bool:
        one = socket.socket()
        one.settimeout(1)
        try:
            one.connect(("127.0.0.1", self._target.port))
        except OSError:
            one.close()
            return False
        one.setblocking(False)
        if self._load.cut:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CUT)
            one.close()
            return not self._stop.wait(0.001) and not self.has_started.is_set()
        self._open[one] = self._data
        return not self._stop.is_set()

    def _exchange(self, one: socket.socket, is_readable: bool) -> None:
        try:
            if left := self._open[one]:
                self._open[one] = left[one.send(left) :]
            if is_readable and not one.recv(65_536):
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:
            del self._open[one]
            one.close()


@contextmanager
def attacked(target: Target, load: Load) -> Generator[None]:
    """The load is on while the block is open."""
    stop = threading.Event()
    attacks = [_Attack(target, load, stop) for _ in range(ATTACKERS)]
    threads = [threading.Thread(target=attack.run) for attack in attacks]
    for thread in threads:
        thread.start()
    try:
        for attack in attacks:
            attack.has_started.wait(PATIENCE)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)


def health(target: Target) -> tuple[int, float]:
    """The status of ``/health``, and the seconds until it is there."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=PATIENCE)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        return response.status, time.perf_counter() - started
    finally:
        connection.close()


WORDS: dict[str, tuple[str, ...]] = {
    "serve": ("serve", "--agent", "gemini-cli", "--program", str(PROGRAM)),
    "mcp": ("mcp", "--http", "--agent", "gemini-cli", "--program", str(PROGRAM)),
    "view": ("view", "--no-open"),
}


@contextmanager
def running(kind: str, folder: Path) -> Generator[Target]:
    """A server with few descriptors, in its own process. It is killed at the end if it still
    runs."""
    log = folder / f"{kind}.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$0" "$@"', sys.executable, "-m",
             "corral", *WORDS[kind]],
            cwd=folder,
            env={**os.environ, "GEMINI_API_KEY": "scripted-key-0123456789",
                 "CORRAL_MCP_TOKEN": TOKEN},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        host = address.removeprefix("http://").partition("/")[0]
        token = TOKEN
        if kind == "serve":
            token = process.stdout.readline().rpartition(" ")[2].strip()
        elif kind == "view":
            token = address.rpartition("token=")[2]
        yield Target(kind, int(host.rpartition(":")[2]), token, process, log)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def main() -> None:
    """Print the longest time of some answers of ``/health`` under each load. Words: kinds of
    servers, and beginnings of loads."""
    kinds = [kind for kind in WORDS if kind in sys.argv] or [*WORDS]
    begin = tuple({*sys.argv[1:]} - {*WORDS}) or ("",)
    names = [name for name in LOADS if name.startswith(begin)]
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in itertools.product(kinds, names):
            measure(kind, name, Path(folder))


def measure(kind: str, name: str, folder: Path) -> None:
    with running(kind, folder) as target:
        with attacked(target, LOADS[name]):
            times: list[float] = []
            end = time.monotonic() + 3
            while time.monotonic() < end:
                times.append(health(target)[1])
                time.sleep(0.05)
        target.process.terminate()
        started = time.perf_counter()
        code = target.process.wait(PATIENCE)
        ended = time.perf_counter() - started
        size = target.log.stat().st_size
        print(
            f"{kind:6} {name:30} longest {max(times):6.3f} s of {len(times):3},"
            f" ended after {ended:5.2f} s with {code}, log {size:,} bytes",
            flush=True,
        )


if __name__ == "__main__":
    main()
