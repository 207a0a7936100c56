"""The server of Python functions as any MCP client sees it: plain HTTP, without the SDK's client,
which differs between its versions (``make test-lowest``)."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from typing import Any

from corral import __version__
from corral._sessions.tools.mcp_server import ToolServer

CLIENT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "a", "version": "1"},
}


def post(server: ToolServer, method: str, params: object, call_id: int | None = 1) -> Any:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if call_id is not None:
        message["id"] = call_id
    headers = {
        **server.mcp_server.headers,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    request = urllib.request.Request(server.url, json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        body = response.read()
    return json.loads(body)["result"] if body else None


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_a_client_lists_and_calls_tools_and_cancels_a_call() -> None:
    started = threading.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with ToolServer([add, wait]) as server:

        async def ask(method: str, params: object = None, call_id: int | None = 1) -> Any:
            return await asyncio.to_thread(post, server, method, params or {}, call_id)

        hello = await ask("initialize", CLIENT)
        assert hello["serverInfo"] == {"name": "corral", "version": __version__}
        assert "tools" in hello["capabilities"]
        tools = {tool["name"]: tool for tool in (await ask("tools/list"))["tools"]}
        assert tools["add"]["description"] == "Adds."
        assert tools["add"]["inputSchema"]["required"] == ["a", "b"]
        assert server.connected.is_set()
        sum_ = await ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
        assert (sum_["isError"], sum_["content"][0]["text"]) == (False, '{"result":3}')
        refused = await ask("tools/call", {"name": "add", "arguments": {"a": "x"}})
        assert refused["isError"] is True
        assert "b: is required and missing" in refused["content"][0]["text"]
        waiting = asyncio.create_task(ask("tools/call", {"name": "wait"}, 7))
        await asyncio.to_thread(started.wait, 60)
        await ask("notifications/cancelled", {"requestId": 7}, None)
        assert (await waiting)["isError"] is True
        assert server.calls == 3
