"""An MCP server with the tools of one caller: what each message does, and standard input and output
as its transport.

Theory of operation
-------------------
``McpServer.handle`` takes one message and returns its reply, or None if it has none. A transport
runs it in one task per message, so that a call that waits blocks no other. ``notifications/
cancelled`` cancels the task of the request with that id; its reply is not sent.

A call of a tool always has a result. What is wrong with its arguments, or not permitted, is a
result that is an error: the model reads it and can correct itself. JSON-RPC errors are for what a
client does wrong: an unknown method, tool or task.

``serve_streams`` is the transport of a client that started this process. It ends when the client
closes standard input, or at a signal; messages whose replies no one reads are cancelled then.
Whether the runs go on is decided by who has opened them (``CallerRuns``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from corral._core.nesting import decode_json
from corral._protocol import jsonrpc
from corral._protocol.ndjson import Lines, Oversized
from corral._serving.caller_runs import CallerRun, RunView
from corral._serving.mcp import run_tasks, wire
from corral._serving.mcp.tools import CallerTools, Report, error_result, unknown_tool
from corral._serving.mcp.wire import McpCall, RequestId, RpcFailure
from corral._system.standard_streams import StandardStreams
from corral.errors import CorralError
from corral.values import Json, JsonObject, as_object

MOST_CALLS = 200
"""Messages that are being worked on."""
LAST_WRITE = 2.0
"""Seconds for replies on their way when the client has gone."""
AS_TASKS = ("run", "run_pipeline")
"""Tools whose runs become tasks, for clients that take them."""

Send = Callable[[JsonObject], None]
_log = logging.getLogger("corral.serving")


class McpService:
    """Answers the messages of one caller, which may have several connections."""

    def __init__(self, tools: CallerTools) -> None:
        self._tools = tools
        self._running: dict[asyncio.Task[object], RequestId] = {}

    async def handle(self, message: Json, send: Send) -> JsonObject | None:
        """The reply to a message. ``send`` sends notifications about it meanwhile."""
        try:
            call = wire.read(message)
        except RpcFailure as error:
            return wire.failure(wire.id_of(message), error)
        if call is None:
            return None
        if call.id is None:
            self._notified(call)
            return None
        task = asyncio.current_task()
        if len(self._running) >= MOST_CALLS:
            return wire.failure(
                call.id, RpcFailure(jsonrpc.INTERNAL_ERROR, "too many open requests")
            )
        if task is not None:
            self._running[task] = call.id
        try:
            return wire.reply(call, await self._result(call, send))
        except RpcFailure as error:
            return wire.failure(call.id, error)
        except Exception as error:  # without a reply the client would wait
            _log.exception("%s failed", call.method)
            why = f"corral failed: {type(error).__name__}; its log says more"
            return wire.failure(call.id, RpcFailure(jsonrpc.INTERNAL_ERROR, why))
        finally:
            if task is not None:
                del self._running[task]

    def caller_left(self) -> None:
        """The connection has ended."""
        self._tools.caller_has_left = True

    def _notified(self, call: McpCall) -> None:
        if call.method == "notifications/cancelled":
            id = call.params.get("requestId")
            named = [task for task, of in self._running.items() if of == id]
            if len(named) == 1:  # two clients may have used one id: then neither is cancelled
                named[0].cancel()

    async def _result(self, call: McpCall, send: Send) -> JsonObject:
        match call.method:
            case "initialize":
                return wire.initialized(call, self._tools.instructions)
            case "ping" if not call.is_modern:
                return {}
            case "server/discover" if call.is_modern:
                return wire.discovered(self._tools.instructions)
            case "tools/list":
                return {"tools": self._tools.listed(), **(wire.CACHED if call.is_modern else {})}
            case "tools/call":
                return await self._call_tool(call, send)
            case "tasks/get" | "tasks/update" | "tasks/cancel":
                return await self._about_task(call)
            case _:
                raise RpcFailure(jsonrpc.METHOD_NOT_FOUND, "Method not found", call.method)

    async def _call_tool(self, call: McpCall, send: Send) -> JsonObject:
        name, arguments = call.params.get("name"), call.params.get("arguments")
        if not isinstance(name, str) or name not in self._tools.names:
            error = unknown_tool(str(name), self._tools.names)
            raise RpcFailure(jsonrpc.INVALID_PARAMS, error.message)
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcFailure(jsonrpc.INVALID_PARAMS, "arguments must be an object")
        if call.takes_tasks and name in AS_TASKS:
            return await self._start_task(call, name, as_object(arguments))
        return await self._tools.call(name, as_object(arguments), _reporter(call, send))

    async def _start_task(self, call: McpCall, name: str, arguments: JsonObject) -> JsonObject:
        """A task; the result itself if the run ends at once, or cannot start."""
        try:
            run = await self._tools.begin(name, arguments)
        except CorralError as error:
            return error_result(error)
        view = await run.wait(run_tasks.GRACE)
        task = await run_tasks.task_of(view, call)
        return as_object(task["result"]) if "result" in task else {"resultType": "task", **task}

    async def _about_task(self, call: McpCall) -> JsonObject:
        wire.require_tasks(call)
        id = call.params.get("taskId")
        try:
            if not isinstance(id, str):
                raise RpcFailure(jsonrpc.INVALID_PARAMS, "taskId must be a string")
            view = await self._tools.runs.view(id)
            run = self._find(id)
            if call.method == "tasks/get":
                return await run_tasks.task_of(view, call)
            if run is not None and call.method == "tasks/cancel":
                run.cancel()
            elif run is not None:
                run_tasks.answer(run, call.params.get("inputResponses"))
        except CorralError as error:
            raise RpcFailure(jsonrpc.INVALID_PARAMS, error.message) from error
        return {}

    def _find(self, id: str) -> CallerRun | None:
        try:
            return self._tools.runs.find(id)
        except CorralError:  # it ended long ago
            return None


def _reporter(call: McpCall, send: Send) -> Report:
    """Sends progress notifications, to a client that wants them."""
    token, count = call.progress_token, 0

    def report(view: RunView) -> None:
        nonlocal count
        if token is not None:
            count += 1
            text = f"{view.run}: {view.activity}, {view.steps} steps, {view.seconds:.0f} s"
            send(wire.progress(token, count, text))

    return report


async def serve_streams(server: McpService, streams: StandardStreams, stop: asyncio.Event) -> None:
    """Serve the program that started this process, until it closes the connection, or until
    ``stop`` is set."""
    working: set[asyncio.Task[None]] = set()

    def send(message: JsonObject) -> None:
        streams.write(msgspec.json.encode(message) + b"\n")

    async def work(line: bytes) -> None:
        try:
            message = decode_json(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            send(wire.failure(None, RpcFailure(jsonrpc.PARSE_ERROR, f"not JSON: {error}")))
            return
        reply = await server.handle(message, send)
        if reply is not None:
            send(reply)

    lines = Lines()
    try:
        while data := await _read(streams, stop):
            for block in lines.feed(data):
                if isinstance(block, Oversized):
                    text = f"a message of {block.size:,} bytes is too large"
                    send(wire.failure(None, RpcFailure(jsonrpc.INVALID_REQUEST, text)))
                    continue
                for line in filter(None, map(bytes.strip, block.split(b"\n"))):
                    task = asyncio.create_task(work(line))
                    working.add(task)
                    task.add_done_callback(working.discard)
            # A cancellation acts on what was read before it, and replies are sent in between.
            await asyncio.sleep(0)
            while streams.is_full and not stop.is_set():
                await streams.drain(1.0)
    finally:
        server.caller_left()
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working, timeout=LAST_WRITE)
        await streams.drain(LAST_WRITE)


async def _read(streams: StandardStreams, stop: asyncio.Event) -> bytes:
    """The next bytes; ``b""`` at the end, or once ``stop`` is set."""
    reading, stopping = asyncio.create_task(streams.read()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() and not stop.is_set() else b""
    finally:
        reading.cancel()
        stopping.cancel()
