"""Servers on this machine for tests of proxies: files over HTTP, and a proxy with a password."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit


class _Server:
    """Use it as ``async with``."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve_one, self._address, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        # It ends without an error if it is cancelled: asyncio's own callback expects that.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await self.serve(head, reader, writer)
        writer.close()
        self._serving.discard(task)

    async def serve(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raise NotImplementedError


class FileServer(_Server):
    """Serves the files of a folder. ``paths`` are the paths that were requested."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        super().__init__(address)
        self._folder = folder
        self.paths: list[str] = []

    async def serve(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = unquote(urlsplit(head.split(" ")[1]).path)
        self.paths.append(path)
        file = self._folder / path.lstrip("/")
        if file.is_dir():
            file = file / "index.html"
        found = file.is_file()
        body = file.read_bytes() if found else b"not found"
        kind = "text/html" if file.suffix == ".html" else "application/octet-stream"
        kind = "application/json" if found and body[:1] == b"{" else kind
        writer.write(
            f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()


class MappingProxy(_Server):
    """A proxy that connects to one port of this machine, whatever host is named."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._target = port
        self.hosts: set[str] = set()
        """The hosts that were named."""
        self.connected: list[str] = []
        """What ``CONNECT`` named."""
        self.credentials: set[str] = set()

    async def serve(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        method, target, _ = head.partition("\r\n")[0].split(" ")
        for line in head.split("\r\n"):
            if line.lower().startswith("proxy-authorization: basic "):
                self.credentials.add(b64decode(line.split(" ")[2]).decode())
        outside_reader, outside_writer = await asyncio.open_connection("127.0.0.1", self._target)
        if method == "CONNECT":
            self.connected.append(target)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            outside_writer.write(head.encode("latin-1"))
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        self.hosts.add(url.hostname or "")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()

        forward = asyncio.ensure_future(copy(reader, outside_writer))
        try:
            await copy(outside_reader, writer)
        finally:
            forward.cancel()
            await asyncio.wait([forward])
            outside_writer.close()
