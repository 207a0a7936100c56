"""``corral serve``: its application in the test's own event loop, and a client of it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from corral._serving.allowance import Allowance
from corral._serving.http.application import ServeApp
from corral._serving.http.clients import ServiceClient, hash_of, one_client, read_clients
from corral._serving.http.server import RunServer
from corral._system.http import asgi_server

TOKENS = {"ann": "token-of-ann-0123456789", "bob": "token-of-bob-0123456789"}


def clients_file(path: Path, **tables: str) -> Path:
    """A file with the clients of ``TOKENS``, each with further lines of TOML."""
    text = "".join(
        f'[clients.{name}]\ntoken_sha256 = "{hash_of(token)}"\n{tables.get(name, "")}\n'
        for name, token in TOKENS.items()
        if tables.get(name) != "-"
    )
    path.write_text(text)
    return path


class Sent(NamedTuple):
    """One server-sent event."""

    name: str
    id: str
    data: Any


class ServeClient:
    """One client of the API."""

    def __init__(self, http: aiohttp.ClientSession, base: str, token: str) -> None:
        self._http = http
        self.base = base
        self.headers = {"Authorization": f"Bearer {token}"}

    async def call(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        """The status and the decoded body."""
        data = None if body is None else io.BytesIO(msgspec.json.encode(body))
        async with self._http.request(
            method, self.base + path, data=data, headers={**self.headers, **headers}
        ) as response:
            content = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(content) if is_json else content.decode()

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.call("GET", path)

    async def post(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        return await self.call("POST", path, body, **headers)

    async def start(self, prompt: str, wait: int = 0, **fields: object) -> Any:
        status, view = await self.post(f"/v1/runs?wait={wait}", {"prompt": prompt, **fields})
        assert status == 200, view
        return view

    async def stream(self, run: str, after: str = "", most: int | None = None) -> list[Sent]:
        """The events of a run until its end, or the first ones."""
        found: list[Sent] = []
        headers = {**self.headers, **({"Last-Event-ID": after} if after else {})}
        async with self._http.get(f"{self.base}/v1/runs/{run}/events", headers=headers) as response:
            assert response.status == 200, await response.text()
            fields: dict[str, str] = {}
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    data = json.loads(fields["data"])
                    found.append(Sent(fields["event"], fields.get("id", ""), data))
                    fields = {}
                    if len(found) == most:
                        break
        return found


class Served(NamedTuple):
    service: RunServer
    http: aiohttp.ClientSession
    base: str

    def client(self, name: str) -> ServeClient:
        return ServeClient(self.http, self.base, TOKENS.get(name, name))


@asynccontextmanager
async def served(allowance: Allowance, clients: Path | None = None) -> AsyncGenerator[Served]:
    """The application behind a real socket; without a file of clients, ``ann`` is the only one."""
    known: dict[str, ServiceClient] = {"default": one_client(TOKENS["ann"])}
    service = RunServer(allowance, known if clients is None else read_clients(clients), clients)
    listener, stop, ready = asgi_server.bind("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    connector = aiohttp.TCPConnector(limit=0)
    async with service, aiohttp.ClientSession(connector=connector) as http:
        serving = asyncio.create_task(
            asgi_server.serve(ServeApp(service), listener, on_ready=ready.set, stop=stop)
        )
        try:
            await ready.wait()
            yield Served(service, http, base)
        finally:
            service.end_streams()
            stop.set()
            await serving
