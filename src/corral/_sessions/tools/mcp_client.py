"""A client of MCP servers: for the built-in agent, and to check the servers of every other one.

Agents leave out a server that does not start or refuses its token, and most of them say nothing. So
``ServerCheck`` opens each server once before the agent starts: it must answer ``initialize`` and
list its tools. Then it is closed, because some servers allow one client only. The SDK of MCP is not
used: it starts programs outside of the sandbox, and is an extra.

A server is a program, which reads and writes JSON lines, or a URL (streamable HTTP). A program runs
as the commands of the built-in agent do: in the sandbox if the run has one, without the key of the
agent, and everything that it started ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec

from corral._core.nesting import decode_json
from corral._protocol.jsonrpc import RpcFrame
from corral._protocol.ndjson import Lines
from corral._protocol.schema import Schema
from corral._protocol.sse import SseDecoder
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sandbox import command_sandbox
from corral._sessions.tools.hooks import HookAnswer
from corral._sessions.tools.tools import Tool
from corral._system import paths
from corral._system.environment import SecretRedactor, for_commands, redactor_of
from corral._system.http.client import Http, HttpResponse
from corral._system.process.process import Process, ProcessSpec
from corral._system.process.tree import shared_registry
from corral.errors import CorralError, ToolFailed
from corral.events import ToolStatus
from corral.messages import Image
from corral.values import (
    Json,
    JsonObject,
    McpServer,
    as_object,
    as_objects,
    convert_to,
    text_or_none,
)
from corral.version import __version__

PROTOCOL = "2025-11-25"
CALL_TIMEOUT = 600.0
"""Seconds that one call of a tool may take."""
PAGES = 100
"""Pages of a list of tools that are read: a list may never end."""
EXIT_TIME = 1.0
"""Seconds that a program gets to exit when its input ends, and again after TERM."""
LONGEST_NAME = 64
"""Characters of a tool's name that models accept."""
REASON = 300
"""Characters of what a server wrote that an error repeats."""
NO_METHOD = -32601


class McpTool(msgspec.Struct, frozen=True, rename="camel"):
    """A tool of a server, as the server describes it."""

    name: str
    description: str | None = None
    input_schema: JsonObject = msgspec.field(default_factory=lambda: {"type": "object"})


class _ServerRefused(Exception):
    """Why a server cannot be used, as the end of a sentence about it."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.hint = hint


class _Transport(Protocol):
    async def send(self, message: JsonObject) -> RpcFrame | None:
        """Send a message; the reply to one that has an id. Raises ``_ServerRefused``."""
        ...

    async def close(self) -> None: ...


class McpClient:
    """A connection to one server. Calls may run at the same time."""

    def __init__(self, server: McpServer, transport: _Transport) -> None:
        self.server = server
        self.tools: tuple[McpTool, ...] = ()
        self.is_open: bool = True
        self._transport = transport
        self._id = 0

    @classmethod
    async def open(cls, server: McpServer, prepared: PreparedRun) -> McpClient:
        """Connect to a server of this run and list its tools. Raises ``ToolFailed``, which names
        the server and the reason; then nothing of it is left."""
        limit = min(prepared.run.startup_timeout, prepared.run.timeout)
        transport: _Transport | None = None
        try:
            async with asyncio.timeout(limit):
                if server.url is not None:
                    transport = _Web(server.url, server.headers)
                else:
                    transport = await _start_program(server, prepared)
                client = cls(server, transport)
                await client._handshake()
        except BaseException as error:
            if transport is not None:
                await transport.close()
            match error:
                case TimeoutError():
                    raise _failure(server, f"did not answer within {limit:g} s") from error
                case _ServerRefused():
                    raise _failure(server, str(error), error.hint) from error
                case CorralError():
                    raise _failure(server, f"cannot be used: {error.message}") from error
                case _:
                    raise
        return client

    async def _handshake(self) -> None:
        about: JsonObject = {"name": "corral", "version": __version__}
        hello: JsonObject = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        answer = await self._request("initialize", hello)
        await self._transport.send(_message("notifications/initialized"))
        if "tools" not in as_object(answer.get("capabilities")):
            return
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._request("tools/list", {"cursor": cursor} if cursor else {})
            try:
                self.tools += convert_to(page.get("tools"), tuple[McpTool, ...])
            except msgspec.ValidationError as error:
                raise _ServerRefused(f"has an invalid list of tools: {error}") from error
            cursor = text_or_none(page.get("nextCursor"))
            if cursor is None:
                return

    async def call(self, tool: str, arguments: JsonObject) -> JsonObject:
        """The result of a call, as the protocol has it. Raises ``ToolFailed``. A call that is
        cancelled is cancelled at the server, too."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await self._request("tools/call", {"name": tool, "arguments": arguments})
        except TimeoutError as error:
            why = f"did not answer {tool} within {CALL_TIMEOUT:g} s"
            raise _failure(self.server, why) from error
        except _ServerRefused as error:
            raise _failure(self.server, str(error), error.hint) from error
        except CorralError as error:
            raise _failure(self.server, f"failed: {error.message}") from error

    async def _request(self, method: str, params: JsonObject) -> JsonObject:
        self._id += 1
        number = self._id
        try:
            reply = await self._transport.send(_message(method, params, id=number))
        except asyncio.CancelledError:
            if method == "tools/call":
                with contextlib.suppress(_ServerRefused, CorralError):
                    cancelled: JsonObject = {"requestId": number}
                    await self._transport.send(_message("notifications/cancelled", cancelled))
            raise
        except (_ServerRefused, CorralError):
            self.is_open = False
            raise
        if reply is None:
            raise _ServerRefused(f"has no reply to {method}")
        if reply.error is not None:
            raise _ServerRefused(f"refused {method}: {reply.error.message[:REASON]}")
        return as_object(reply.result)

    async def close(self) -> None:
        self.is_open = False
        await self._transport.close()


async def open_servers(servers: Iterable[McpServer], prepared: PreparedRun) -> list[McpClient]:
    """Connect to all servers at once. Raises ``ToolFailed``, which names each that cannot be used,
    with the reason; then none is open."""
    clients: list[McpClient] = []
    failures: list[ToolFailed] = []

    async def open_one(server: McpServer) -> None:
        try:
            clients.append(await McpClient.open(server, prepared))
        except ToolFailed as failure:
            failures.append(failure)

    try:
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(open_one(server))
        if failures:
            message = "; ".join(failure.message for failure in failures)
            raise ToolFailed(message, hint=failures[0].hint) from failures[0]
    except BaseException:
        await close_servers(clients)
        raise
    return clients


async def close_servers(clients: Iterable[McpClient]) -> None:
    """End the connections, all of them also if this task is cancelled."""
    async with AsyncExitStack() as ending:
        for client in clients:
            ending.push_async_callback(client.close)


class ServerCheck:
    """Checks the servers of a session, or of a pool, once each."""

    def __init__(self) -> None:
        self._passed: list[McpServer] = []

    async def run(self, prepared: PreparedRun, folder: Path) -> None:
        """``folder``: that of the session. Raises as ``open_servers``, and what keeps the agent
        from being launched: then no server is started either."""
        new = [each for each in prepared.servers if not each.own and each not in self._passed]
        if prepared.run.replay is not None or not new:
            return
        await prepared.check_launch(folder)
        await close_servers(await open_servers(new, prepared))
        self._passed += new


def server_tools(clients: Iterable[McpClient]) -> list[Tool]:
    """The tools of these servers, by the names that models know: ``mcp__server__tool``."""
    return [_server_tool(client, tool) for client in clients for tool in client.tools]


def _server_tool(client: McpClient, tool: McpTool) -> Tool:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"mcp__{client.server.name}__{tool.name}")
    if len(name) > LONGEST_NAME:
        digest = blake2b(name.encode(), digest_size=4).hexdigest()
        name = f"{name[: LONGEST_NAME - 9]}_{digest}"

    async def call(**arguments: Json) -> HookAnswer:
        result = await client.call(tool.name, arguments)
        status: ToolStatus = "error" if result.get("isError") is True else "success"
        return HookAnswer(result_text(result), status, tuple(_images(result)))

    # The server checks the arguments: its schema may use all that JSON Schema has.
    parameters = Schema[dict[str, object]](name, tool.input_schema, _unchecked)
    return Tool(
        name=name,
        description=tool.description or "",
        parameters=parameters,
        function=call,
        timeout=CALL_TIMEOUT,
    )


def _unchecked(given: Json) -> tuple[dict[str, object], list[str]]:
    return {**as_object(given)}, []


def result_text(result: JsonObject) -> str:
    """The texts of a result; if there are none, its structured content."""
    texts: list[str] = []
    for block in as_objects(result.get("content")):
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "resource", "resource": {"text": str(text)}}:
                texts.append(text)
            case {"type": "resource_link", "uri": str(uri)}:
                texts.append(uri)
            case {"type": "image" | "audio" as kind}:
                texts.append(f"[{kind}: {block.get('mimeType')}]")
            case _:
                pass
    structured = result.get("structuredContent")
    if not texts and structured is not None:
        return msgspec.json.encode(structured).decode()
    return "\n".join(texts)


def _images(result: JsonObject) -> Iterator[Image]:
    for block in as_objects(result.get("content")):
        match block:
            case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                with contextlib.suppress(ValueError):
                    yield Image(b64decode(data, validate=True), kind)
            case _:
                pass


def _failure(server: McpServer, why: str, hint: str | None = None) -> ToolFailed:
    hint = hint or "Correct the server, or leave it out of mcp_servers (--mcp)."
    return ToolFailed(f"the MCP server {server.name!r} {why}", hint=hint)


def _message(method: str, params: JsonObject | None = None, id: int | None = None) -> JsonObject:
    message: JsonObject = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        message["id"] = id
    return {**message, "params": params} if params is not None else message


def _decode(data: bytes) -> RpcFrame:
    try:
        return decode_json(data, RpcFrame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        shown = data[:80].decode(errors="replace")
        raise _ServerRefused(f"wrote something that is not JSON-RPC: {shown!r}") from error


def _answer_to(request: RpcFrame) -> JsonObject:
    """The answer to a request of a server: corral offers servers nothing."""
    if not isinstance(request.id, int | float | str):
        raise TypeError("a notification has no answer")
    answer: JsonObject = {"jsonrpc": "2.0", "id": request.id}
    if request.method == "ping":
        return {**answer, "result": {}}
    return {**answer, "error": {"code": NO_METHOD, "message": f"no method {request.method}"}}


async def _start_program(server: McpServer, prepared: PreparedRun) -> _Program:
    run = prepared.run
    keys = set(prepared.agent.secret_env).difference(run.pass_env)
    env = {name: value for name, value in run.env.items() if name not in keys}
    spec = ProcessSpec(
        server.command,
        cwd=prepared.cwd,
        env={**for_commands(run.pass_env, env), **server.env},
        stdin=b"",
        keep_stdin_open=True,
        registry=shared_registry(paths.process_registry(), prepared.agent.name),
        sandbox=command_sandbox(prepared, shown=server.command[:2]),
    )
    return _Program(await Process.start(spec), redactor_of(prepared.environment))


class _Program:
    """A server on stdin and stdout. There is no reader task, which would keep the program of a
    dropped session alive: the calls that wait read for all of them, one at a time."""

    def __init__(self, process: Process, redactor: SecretRedactor) -> None:
        self._process = process
        self._redactor = redactor
        self._lines = Lines()
        self._replies: dict[int, RpcFrame | None] = {}
        """Of the calls that wait: None until the reply is there."""
        self._one_reads = asyncio.Lock()

    async def send(self, message: JsonObject) -> RpcFrame | None:
        self._process.write(msgspec.json.encode(message) + b"\n")
        number = message.get("id")
        if not isinstance(number, int):
            return None
        self._replies[number] = None
        try:
            while (reply := self._replies[number]) is None:
                async with self._one_reads:
                    if self._replies[number] is None:
                        await self._read()
            return reply
        finally:
            del self._replies[number]

    async def _read(self) -> None:
        chunk = await self._process.read()
        if not chunk:
            ended = await self._process.wait()
            how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
            raise _ServerRefused(f"ended with {how}{self._last_message()}")
        for block in self._lines.feed(chunk):
            for line in block.splitlines() if isinstance(block, bytes) else ():
                self._receive(line)

    def _receive(self, line: bytes) -> None:
        if not line.lstrip().startswith(b"{"):
            return  # some programs print a banner first
        frame = _decode(line)
        if isinstance(frame.method, str):
            if frame.id not in (None, msgspec.UNSET):
                self._process.write(msgspec.json.encode(_answer_to(frame)) + b"\n")
        elif isinstance(frame.id, int) and frame.id in self._replies:
            self._replies[frame.id] = frame

    def _last_message(self) -> str:
        stderr = self._redactor.clean_text_part(
            self._process.stderr, begin_cut=self._process.stderr_is_cut
        )
        last = " ".join(stderr.split())[-REASON:]
        return f": {last}" if last else ", without a message"

    async def close(self) -> None:
        self._process.close_stdin()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_TIME):
                    await self._process.wait()
        finally:
            await self._process.end(EXIT_TIME)


class _Web:
    """A server at a URL. Each message is a POST; its reply is JSON, or the last of some events."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._http = Http()
        self._headers = {"Accept": "application/json, text/event-stream", **headers}

    async def send(self, message: JsonObject) -> RpcFrame | None:
        response = await self._http.post(self._url, msgspec.json.encode(message), self._headers)
        try:
            if not response.is_success:
                raise await _refusal(response)
            if session := response.headers.get("mcp-session-id"):
                self._headers["Mcp-Session-Id"] = session
            if "id" not in message or "method" not in message:
                return None
            reply = await self._reply(response, message["id"])
        finally:
            response.close()
        if message["method"] == "initialize":
            version = text_or_none(as_object(reply.result).get("protocolVersion"))
            self._headers["MCP-Protocol-Version"] = version or PROTOCOL
        return reply

    async def _reply(self, response: HttpResponse, number: Json) -> RpcFrame:
        if response.media_type != "text/event-stream":
            return _decode(await response.body())
        events = SseDecoder()
        while chunk := await response.chunk():
            for data in events.receive(chunk):
                frame = _decode(data)
                if not isinstance(frame.method, str) and frame.id == number:
                    return frame
                if isinstance(frame.method, str) and frame.id not in (None, msgspec.UNSET):
                    await self.send(_answer_to(frame))
        raise _ServerRefused("ended its response without a reply")

    async def close(self) -> None:
        try:
            if "Mcp-Session-Id" in self._headers:
                with contextlib.suppress(CorralError, TimeoutError):
                    async with asyncio.timeout(EXIT_TIME):
                        ended = await self._http.send("DELETE", self._url, b"", self._headers)
                        ended.close()
        finally:
            await self._http.close()


async def _refusal(response: HttpResponse) -> _ServerRefused:
    """Why a server refused a message, by its status."""
    text = " ".join((await response.head(2000)).decode(errors="replace").split())
    shown = "" if text.startswith("<") else text[:REASON]
    why = f"answered HTTP {response.status}" + (f": {shown}" if shown else "")
    if response.status not in (401, 403):
        return _ServerRefused(why)
    hint = 'Give it a valid token in headers, for --mcp after the URL: Authorization="Bearer …".'
    return _ServerRefused(f"{why} (not authorized)", hint)
