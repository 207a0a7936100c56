"""Streamable HTTP as the transport of an MCP server, with a token.

A message is one POST. Its reply is JSON; for a request that wants progress it is an event stream,
which has the progress and then the reply. There are no sessions and no streams of the server's own:
the id of a run is all that a client needs to come back. A client that cuts the connection of a
request of 2026-07-28 cancels it, as that version says; an older one does not.

Every request needs the token. A page in a browser does not have it; one that is not of this machine
is refused in any case.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import msgspec

from corral._protocol import jsonrpc
from corral._serving.mcp import wire
from corral._serving.mcp.server import McpService
from corral._serving.mcp.wire import RpcFailure
from corral._system.http.asgi_server import (
    Message,
    Receive,
    Send,
    decode_body,
    has_token,
    read_body,
    refuse,
    respond,
)
from corral.values import Json, JsonObject, as_object

PATH = "/mcp"
LARGEST = 16 * 1024 * 1024
"""Bytes of a message: twice those of the longest prompt."""
HEADER_MISMATCH = -32020
_LOCAL = ("127.0.0.1", "localhost", "::1")
_NAMED = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId",
          "tasks/cancel": "taskId"}  # fmt: skip
"""Method → what the header ``Mcp-Name`` repeats."""


class McpApp:
    """The ASGI application."""

    def __init__(self, server: McpService, token: str) -> None:
        self._server = server
        self._token = token
        self._working: set[asyncio.Task[JsonObject | None]] = set()

    def cancel_all(self) -> None:
        """The server ends."""
        self._server.caller_left()
        for task in self._working:
            task.cancel()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if not has_token(scope, self._token):
            return await refuse(send, 401, [(b"www-authenticate", b"Bearer")])
        headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        if not _is_local(headers.get("origin")):
            return await refuse(send, 403)
        if scope["path"] != PATH:
            return await refuse(send, 404)
        if scope["method"] != "POST":  # a stream of the server's own, or the end of a session
            return await refuse(send, 405, [(b"allow", b"POST")])
        body = await read_body(receive, LARGEST)
        if body is None:
            return await refuse(send, 413)
        message: Json = None
        try:
            message = await decode_body(body)
            _check_headers(message, headers)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            failure = RpcFailure(jsonrpc.PARSE_ERROR, f"not JSON: {error}")
            return await _send_json(send, 400, wire.failure(None, failure))
        except RpcFailure as error:
            return await _send_json(send, 400, wire.failure(wire.id_of(message), error))
        await self._answer(message, receive, send)

    async def _answer(self, message: Json, receive: Receive, send: Send) -> None:
        notes: asyncio.Queue[JsonObject | None] = asyncio.Queue()
        meta = as_object(as_object(as_object(message).get("params")).get("_meta"))
        is_modern = f"{wire.META}protocolVersion" in meta
        task = asyncio.create_task(self._server.handle(message, notes.put_nowait))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        task.add_done_callback(lambda _: notes.put_nowait(None))

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if is_modern:
                task.cancel()

        watching = asyncio.create_task(watch())
        try:
            if "progressToken" in meta:
                await _stream(send, notes)
            else:
                while await notes.get() is not None:
                    pass
                await _send_reply(send, message, task, is_modern)
                return
            reply = _reply_of(message, task)
            data = b"" if reply is None else _event(reply)
            await send({"type": "http.response.body", "body": data, "more_body": False})
        finally:
            watching.cancel()


def _is_local(origin: str | None) -> bool:
    """Whether a request comes from a page of this machine, or from no page."""
    try:
        return origin is None or urlsplit(origin).hostname in _LOCAL
    except ValueError:  # an IPv6 address without its end
        return False


async def _stream(send: Send, notes: asyncio.Queue[JsonObject | None]) -> None:
    """Start an event stream with the progress of a request."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while (note := await notes.get()) is not None:
        await send({"type": "http.response.body", "body": _event(note), "more_body": True})


def _event(message: JsonObject) -> bytes:
    return b"event: message\ndata: " + msgspec.json.encode(message) + b"\n\n"


def _reply_of(message: Json, task: asyncio.Task[JsonObject | None]) -> JsonObject | None:
    if task.cancelled():
        error = RpcFailure(jsonrpc.REQUEST_CANCELLED, "the request was cancelled")
        return wire.failure(wire.id_of(message), error)
    return task.result()


async def _send_reply(
    send: Send, message: Json, task: asyncio.Task[JsonObject | None], is_modern: bool
) -> None:
    reply = _reply_of(message, task)
    if reply is None:
        return await refuse(send, 202)
    code = as_object(reply.get("error")).get("code")
    status = 200
    if code in (jsonrpc.PARSE_ERROR, jsonrpc.INVALID_REQUEST) or (is_modern and code is not None):
        status = 404 if code == jsonrpc.METHOD_NOT_FOUND else 400
    await _send_json(send, status, reply)


async def _send_json(send: Send, status: int, message: JsonObject) -> None:
    await respond(send, status, msgspec.json.encode(message), b"application/json")


def _check_headers(message: Json, headers: dict[str, str]) -> None:
    """The headers of a request of 2026-07-28 repeat what is in it, for programs on the way. Raises
    ``RpcFailure`` if they differ."""
    given = as_object(message)
    params = as_object(given.get("params"))
    version = as_object(params.get("_meta")).get(f"{wire.META}protocolVersion")
    if version is None:
        return
    method = given.get("method")
    expected = {"mcp-protocol-version": version, "mcp-method": method}
    if isinstance(method, str) and method in _NAMED:
        expected["mcp-name"] = params.get(_NAMED[method])
    for name, value in expected.items():
        if headers.get(name) != value:
            raise RpcFailure(HEADER_MISMATCH, f"the header {name} must be {value!r}")
