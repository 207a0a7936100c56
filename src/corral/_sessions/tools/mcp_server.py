"""Serves Python functions as MCP tools: one server per run, on this machine, with a secret token.

::

    async with ToolServer([weather]) as server:
        await corral.run("…", mcp_servers=[server.mcp_server], policy=Policy(mcp="allow"))

The protocol is streamable HTTP of the official SDK, which is loaded when a server starts. Each
request is answered in JSON, without sessions and streams: an open stream would keep an agent from
exiting. A call is cancelled when its client disconnects or cancels it, and when the block is left.
After the block no task and no socket is open.
"""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from corral._agents.spec import InProcess
from corral._core.nesting import decode_json
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.tools.hooks import HookAnswer
from corral._sessions.tools.tools import Tool, Tools
from corral._system.clock import new_secret
from corral._system.http import asgi_server
from corral._system.http.asgi_server import Message, Receive, Send, has_token, read_body, refuse
from corral._system.threads import in_own_thread
from corral.errors import ConfigError, NotInstalled
from corral.policy import Policy
from corral.values import Json, JsonObject, McpServer
from corral.version import __version__

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from corral._sessions.tools.tools import GivenTools

    Context = ServerRequestContext[Any]


class _Request(Protocol):
    """The HTTP request behind a call, as far as it is used here."""

    scope: Message


PATH = "/mcp"
LARGEST = 64 * 1024 * 1024
"""Bytes of a request: as much as a line of an agent's output may have."""
CALLS = "corral.calls"
"""Where a request keeps the calls that are made for it."""


class ToolServer:
    """Serves while its block is open, for one or several clients, and for several runs."""

    def __init__(
        self,
        tools: Tools | Iterable[Tool | Callable[..., object]],
        *,
        name: str = "corral",
        agent_reports: bool = True,
    ) -> None:
        """``agent_reports``: the agent's own stream reports each call, so the tools'
        ``on_event`` is not called."""
        self.tools: Tools = tools if isinstance(tools, Tools) else Tools(tools)
        self.name = name
        self.calls: int = 0
        """How many calls came in."""
        self.connected: asyncio.Event = asyncio.Event()
        """Set once a client has listed the tools: an agent really knows them."""
        self._quiet = agent_reports
        self._token = new_secret()
        self._running: dict[asyncio.Task[HookAnswer], str | int | None] = {}
        self._manager: StreamableHTTPSessionManager
        self._port = 0
        self._stop = asyncio.Event()
        self._server_task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    @property
    def mcp_server(self) -> McpServer:
        """For the option ``mcp_servers``. Its header is a secret."""
        if self._server_task is None:
            raise RuntimeError("open the server first: async with ToolServer(...) as server")
        headers = {"Authorization": f"Bearer {self._token}"}
        return McpServer(name=self.name, url=self.url, headers=headers, own=True)

    async def __aenter__(self) -> ToolServer:
        """Raises ``NotInstalled`` where the SDK is missing."""
        if self._server_task is not None or self._stop.is_set():
            raise RuntimeError("a tool server is opened once")
        server = await in_own_thread(self._mcp)
        ready = asyncio.Event()
        self._server_task = asyncio.create_task(
            self._serve(server, ready), name="corral-tool-server"
        )
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({self._server_task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._close()
            raise
        finally:
            waiting.cancel()
        if not ready.is_set():
            await self._server_task
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        """Wait for the server's end even if cancelled, then raise the cancellation; ``_serve``
        ends in bounded time."""
        self._stop.set()
        cancelled: asyncio.CancelledError | None = None
        served, self._server_task = self._server_task, None
        while served is not None and not served.done():
            try:
                await asyncio.wait({served})
            except asyncio.CancelledError as error:
                cancelled = error
        if served is not None:
            served.result()
        if cancelled is not None:
            raise cancelled

    def _mcp(self) -> Server[Any]:
        try:
            from mcp.server.lowlevel import Server

            types: Any = import_module("mcp.types" if hasattr(Server, "call_tool") else "mcp_types")
            import_module("uvicorn.protocols.http.h11_impl")
        except ImportError as error:
            raise NotInstalled(
                f"serving tools needs the MCP SDK: {error}",
                hint="pip install 'corral[tools]'",
                phase="config",
            ) from error

        # The field names of the protocol: those in Python differ between 1.x and 2.x.
        listed = [
            types.Tool.model_validate(
                {
                    "name": tool.name,
                    "description": tool.description or None,
                    "inputSchema": tool.parameters.json,
                }
            )
            for tool in self.tools.by_name.values()
        ]

        async def on_list(context: Context | None, params: object) -> Any:
            self.connected.set()
            return types.ListToolsResult(tools=listed)

        async def on_call(context: Context, params: Any) -> Any:
            answer = await self._call(context, params.name, params.arguments)
            structured = _as_object(answer.text)
            text = answer.text if structured is None else msgspec.json.encode(structured).decode()
            images = (
                {
                    "type": "image",
                    "data": b64encode(image.source).decode(),
                    "mimeType": image.media_type or "image/png",
                }
                for image in answer.images
                if isinstance(image.source, bytes)
            )
            return types.CallToolResult.model_validate(
                {
                    "content": [{"type": "text", "text": text}, *images],
                    "structuredContent": structured,
                    "isError": not answer.ok,
                }
            )

        if hasattr(Server, "call_tool"):  # 1.x: a table of handlers, and the context is its own
            server: Server[Any] = Server(self.name, version=__version__)
            old: Any = server

            async def list_tools(request: object) -> Any:
                return types.ServerResult(await on_list(None, request))

            async def call_tool(request: Any) -> Any:
                return types.ServerResult(await on_call(old.request_context, request.params))

            old.request_handlers[types.ListToolsRequest] = list_tools
            old.request_handlers[types.CallToolRequest] = call_tool
            return server
        schemas = {tool.name: tool.input_schema for tool in listed}
        return Server(
            self.name,
            version=__version__,
            on_list_tools=on_list,
            on_call_tool=on_call,
            get_tool_input_schema=schemas.get,  # else it would list them by itself, as a client
        )

    async def _call(self, context: Context, name: str, arguments: Json) -> HookAnswer:
        self.calls += 1
        call = asyncio.create_task(self.tools.call(name, arguments, quiet=self._quiet))
        self._running[call] = context.request_id
        call.add_done_callback(lambda call: self._running.pop(call, None))
        request: _Request | None = context.request
        if request is not None:
            request.scope[CALLS].add(call)
        if self._stop.is_set():
            call.cancel()
        try:
            await asyncio.wait({call})
        finally:
            call.cancel()
        return HookAnswer("cancelled", "cancelled") if call.cancelled() else call.result()

    async def _serve(self, server: Server[Any], ready: asyncio.Event) -> None:
        """Serve in one task: the SDK's task groups must end in the task that opens them."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from mcp.server.transport_security import TransportSecuritySettings

        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        local = [f"127.0.0.1:{self._port}", f"localhost:{self._port}"]
        self._manager = StreamableHTTPSessionManager(
            server,
            json_response=True,
            stateless=True,
            max_request_body_size=LARGEST,
            security_settings=TransportSecuritySettings(allowed_hosts=local),
        )
        async with AsyncExitStack() as stack:
            stack.callback(listener.close)
            stack.push_async_callback(self._end_calls)
            await stack.enter_async_context(self._manager.run())
            await asgi_server.serve(
                self._app, listener, on_ready=ready.set, stop=self._stop, on_stop=self._cancel_all
            )

    def _cancel_all(self) -> None:
        for call in list(self._running):
            call.cancel()

    async def _end_calls(self) -> None:
        self._cancel_all()
        if self._running:
            await asyncio.wait(self._running, timeout=asgi_server.END_TIMEOUT)

    async def _app(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI application: check the token, then handle one complete POST."""
        if not has_token(scope, self._token):
            return await refuse(send, 401, [(b"www-authenticate", b"Bearer")])
        if self._stop.is_set():
            return await refuse(send, 503)
        if scope["path"] != PATH:
            return await refuse(send, 404)
        if scope["method"] != "POST":  # a stream of the server's own, or the end of a session
            return await refuse(send, 405, [(b"allow", b"POST")])
        body = await read_body(receive, LARGEST)
        if body is None:
            return await refuse(send, 413)
        self._cancel_call(body)
        calls: set[asyncio.Task[HookAnswer]] = set()
        unread = [body]
        disconnected = asyncio.Event()

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            await receive()
            disconnected.set()
            for call in list(calls):
                call.cancel()

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await self._manager.handle_request({**scope, CALLS: calls}, replay, send)
            watching.cancel()

    def _cancel_call(self, body: bytes) -> None:
        """``notifications/cancelled`` comes in a separate request, where the SDK without
        sessions knows no calls. Two clients may have used one id: then neither is cancelled."""
        if b"notifications/cancelled" not in body:
            return
        try:
            match json.loads(body):
                case {"method": "notifications/cancelled", "params": {"requestId": request_id}}:
                    named = [call for call, of in self._running.items() if of == request_id]
                case _:
                    named = []
        except (ValueError, RecursionError):
            return
        if len(named) == 1:
            named[0].cancel()


def _as_object(text: str) -> JsonObject | None:
    """The value of an answer that is JSON; one that is not an object is put into one. An agent may
    take such a text for structured content, and then reject it because it is not an object."""
    try:
        value = decode_json(text)
    except msgspec.MsgspecError:
        return None
    return value if isinstance(value, dict) else {"result": value}


NOT_OPEN = McpServer(name="corral", url="http://127.0.0.1:1/mcp", own=True)
"""In place of the tool server, for the checks before it is open."""


def with_own_tools(
    given: Mapping[str, object],
    tools: GivenTools,
    prepared: PreparedRun,
    server: McpServer | None = None,
) -> dict[str, object]:
    """The options with the server of the functions. An agent that runs in this process calls them
    without one. Raises ``ConfigError``."""
    options: dict[str, object] = dict(given)
    policy = options.get("policy") or Policy()
    if isinstance(policy, Policy) and policy.mcp is None and policy.own_mcp is None:
        # A caller who gives a function wants the agent to call it.
        options["policy"] = replace(policy, own_mcp="allow")
    if isinstance(prepared.agent.transport, InProcess):
        return options
    if not isinstance(tools, Sequence) and tools.agent_hooks:
        raise ConfigError(
            f"{prepared.agent.name} does not ask before each of its calls:"
            " agent_hooks are not available with it",
            hint="Give hooks for your own functions, or take an agent of this process.",
        )
    if prepared.run.replay is not None:
        raise ConfigError(
            "a recording calls no tools: replay and tools both given",
            hint="Test the functions by themselves, or drive the agent with a ModelServer.",
        )
    options["mcp_servers"] = [*prepared.run.mcp_servers, server or NOT_OPEN]
    return options
