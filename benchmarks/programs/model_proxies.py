"""A proxy in front of the scripted model server: ``model_proxies.py WAY UPSTREAM``.

Prints a JSON object with its URL and the key for it, and then, for each line that it reads, the CPU
time of its process so far. ``limit`` passes bytes on without a look at them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

KEY = "none-is-needed"
READ = 64 * 1024


def announce(url: str, key: str) -> None:
    print(json.dumps({"url": url, "key": key}), flush=True)


def report_cpu() -> None:
    """For each line; the process ends with the input."""
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
    os._exit(0)


async def corral(upstream: str) -> None:
    from corral._metering.proxy.proxy import ModelProxy, ProxySettings
    from corral._models.registry import find_provider

    settings = ProxySettings(
        upstream=upstream, providers=lambda: [find_provider("gemini")], keys={"KEY": KEY}
    )
    proxy = ModelProxy(settings, lambda call: None)
    await proxy.open()
    announce(f"http://127.0.0.1:{proxy.port}", proxy.dummy_keys["KEY"])
    await asyncio.Event().wait()


async def limit(upstream: str) -> None:
    port = urlsplit(upstream).port

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above, to_above = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, to_above), copy(above, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    announce(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", KEY)
    await server.serve_forever()


async def litellm(upstream: str) -> None:
    """Its cheapest way: requests in the vendor's own format are passed through."""
    master = f"sk-{os.urandom(20).hex()}"
    os.environ |= {"GEMINI_API_BASE": upstream, "GEMINI_API_KEY": KEY, "LITELLM_LOG": "ERROR"}
    os.environ["LITELLM_MASTER_KEY"] = master
    from importlib import import_module

    uvicorn: Any = import_module("uvicorn")
    server: Any = import_module("litellm.proxy.proxy_server")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(server.app, log_level="error", access_log=False)
        running = uvicorn.Server(config)
        serve = asyncio.create_task(running.serve(sockets=[listener]))
        while not running.started:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        announce(f"http://127.0.0.1:{port}/gemini", master)
        await serve


if __name__ == "__main__":
    threading.Thread(target=report_cpu, daemon=True).start()
    ways = {"corral": corral, "limit": limit, "litellm": litellm}
    asyncio.run(ways[sys.argv[1]](sys.argv[2]))
