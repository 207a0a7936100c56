"""A client of ``corral acp``, as an editor is one: a process, and JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

Answer = Callable[[str, dict[str, Any]], Any]
"""The result of a request of the agent, by its method and parameters, or its error (``RpcFailed``);
None: it gets no answer."""
COMMAND = (sys.executable, "-m", "corral", "acp")
TIMEOUT = 60.0


def allow(method: str, params: dict[str, Any]) -> Any:
    return {"outcome": {"outcome": "selected", "optionId": "allow_once"}}


def deny(method: str, params: dict[str, Any]) -> Any:
    return {"outcome": {"outcome": "selected", "optionId": "deny"}}


def silent(method: str, params: dict[str, Any]) -> Any:
    return None


class RpcFailed(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Editor:
    def __init__(self, process: Process, answer: Answer) -> None:
        self.process = process
        self.answer = answer
        self.updates: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        """Notifications that are no updates."""
        self.requests: list[dict[str, Any]] = []
        self.strays: list[dict[str, Any]] = []
        """Replies without an id."""
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            message = msgspec.json.decode(line)
            assert message["jsonrpc"] == "2.0"
            if "method" not in message:
                future = self._calls.pop(message["id"] or -1, None)
                if future is None:
                    self.strays.append(message)
                elif not future.done():
                    future.set_result(message)
            elif "id" in message:
                self.requests.append(message)
                result = self.answer(message["method"], message["params"])
                if isinstance(result, RpcFailed):
                    error = {"code": result.code, "message": result.message}
                    self.write({"id": message["id"], "error": error})
                elif result is not None:
                    self.write({"id": message["id"], "result": result})
            elif message["method"] == "session/update":
                self.updates.append(message["params"]["update"])
            else:
                self.notices.append(message)

    def write(self, message: Mapping[str, Any]) -> None:
        self.raw(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    def raw(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)

    def notify(self, method: str, **params: Any) -> None:
        self.write({"method": method, "params": params})

    def start(self, method: str, **params: Any) -> tuple[int, asyncio.Future[Any]]:
        id = next(self._ids)
        self._calls[id] = asyncio.get_running_loop().create_future()
        self.write({"id": id, "method": method, "params": params})
        return id, self._calls[id]

    async def call(self, method: str, **params: Any) -> Any:
        _, future = self.start(method, **params)
        return await self.result(future)

    async def result(self, future: asyncio.Future[Any]) -> Any:
        async with asyncio.timeout(TIMEOUT):
            message = await future
        if "error" in message:
            raise RpcFailed(message["error"])
        return message["result"]

    async def initialize(self, **capabilities: Any) -> Any:
        return await self.call("initialize", protocolVersion=1, clientCapabilities={**capabilities})

    async def session(self, cwd: object, **params: Any) -> str:
        opened = await self.call("session/new", cwd=str(cwd), mcpServers=[], **params)
        return str(opened["sessionId"])

    async def prompt(self, session: str, *content: Any) -> Any:
        return await self.call("session/prompt", sessionId=session, prompt=blocks(*content))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                await asyncio.sleep(0.02)

    @property
    def text(self) -> str:
        return "".join(
            each["content"]["text"]
            for each in self.updates
            if each["sessionUpdate"] == "agent_message_chunk"
        )

    async def close(self) -> int:
        """Close our side; the exit code."""
        assert self.process.stdin
        self.process.stdin.close()
        async with asyncio.timeout(TIMEOUT):
            code = await self.process.wait()
            await self.ended()
        return code

    async def ended(self) -> None:
        await asyncio.wait([self._reading])


def blocks(*content: Any) -> list[Any]:
    return [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]


@contextlib.asynccontextmanager
async def editor(
    *arguments: str, env: Mapping[str, str] | None = None, answer: Answer = allow
) -> AsyncGenerator[Editor]:
    """An initialized client of ``corral acp ARGUMENTS``."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, **(env or {})},
        limit=1 << 28,
    )
    client = Editor(process, answer)
    try:
        await client.initialize()
        yield client
        assert await client.close() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin:
            process.stdin.close()
        await process.wait()
        await client.ended()
