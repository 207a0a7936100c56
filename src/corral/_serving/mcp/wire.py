"""The messages of an MCP server that has tools: reads requests, makes replies. No I/O.

Two generations of the protocol are spoken, and each request says which one it is:

- 2026-07-28: every request has its version and the client's capabilities in ``_meta``, and there is
  no handshake (``server/discover`` is optional). A client that declares the extension
  ``io.modelcontextprotocol/tasks`` may get a task in place of a result.
- 2024-11-05 to 2025-11-25: ``initialize`` agrees on the version. A request without the ``_meta`` of
  the newer one is of this kind; that a client may send one before ``initialize`` does no harm.

What is wrong with a request is an ``RpcFailure`` with the code that the protocol has for it.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from corral._core.nesting import TOO_DEEP, is_too_deep
from corral._protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from corral.values import Json, JsonObject, as_object, is_object
from corral.version import __version__

MODERN = "2026-07-28"
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TASKS = "io.modelcontextprotocol/tasks"
META = "io.modelcontextprotocol/"
SERVER = {"name": "corral", "title": "corral", "version": __version__}

MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

RequestId: TypeAlias = str | int


class RpcFailure(Exception):
    """The error reply to a request."""

    def __init__(self, code: int, message: str, data: Json = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class McpCall(msgspec.Struct, frozen=True):
    """A request, or a notification (without an id)."""

    method: str
    params: JsonObject
    id: RequestId | None = None
    is_modern: bool = False
    capabilities: JsonObject = {}
    """Of the client; a request of an older version does not repeat them."""
    progress_token: RequestId | None = None

    @property
    def takes_tasks(self) -> bool:
        return self.is_modern and TASKS in as_object(self.capabilities.get("extensions"))

    @property
    def takes_elicitation(self) -> bool:
        """Whether its tasks may ask the person in front of the client."""
        return self.is_modern and "elicitation" in self.capabilities


def id_of(message: Json) -> RequestId | None:
    """The id of a message, if it can be read."""
    found = as_object(message).get("id")
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def read(message: Json) -> McpCall | None:
    """The request or notification in a message; None for a reply. Raises ``RpcFailure``."""
    if not is_object(message) or message.get("jsonrpc") != "2.0":
        raise RpcFailure(INVALID_REQUEST, "not a JSON-RPC 2.0 message")
    if is_too_deep(message):
        raise RpcFailure(INVALID_REQUEST, TOO_DEEP)
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return None
    if not isinstance(method, str):
        raise RpcFailure(INVALID_REQUEST, "the method is missing")
    id = id_of(message)
    if "id" in message and id is None:
        raise RpcFailure(INVALID_REQUEST, "the id must be a string or an integer")
    params = message.get("params", {})
    if not is_object(params):
        raise RpcFailure(INVALID_PARAMS, "params must be an object")
    meta = params.get("_meta", {})
    if not is_object(meta):
        raise RpcFailure(INVALID_PARAMS, "_meta must be an object")
    token = meta.get("progressToken")
    if isinstance(token, bool) or not isinstance(token, str | int):
        token = None
    call = McpCall(method, params, id, progress_token=token)
    return _modern(call, meta) if f"{META}protocolVersion" in meta else call


def _modern(call: McpCall, meta: JsonObject) -> McpCall:
    version, given = meta[f"{META}protocolVersion"], meta.get(f"{META}clientCapabilities")
    if not isinstance(version, str) or (call.id is not None and not is_object(given)):
        raise RpcFailure(
            INVALID_PARAMS, f"_meta must have {META}protocolVersion and {META}clientCapabilities"
        )
    if version != MODERN or call.method == "initialize":
        data: Json = {"supported": [MODERN], "requested": version}
        raise RpcFailure(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return msgspec.structs.replace(call, is_modern=True, capabilities=as_object(given))


def reply(call: McpCall, result: JsonObject) -> JsonObject:
    """The reply with a result, in the form of the call's version."""
    if call.is_modern:
        meta: JsonObject = {f"{META}serverInfo": {**SERVER}}
        result = {"resultType": "complete", **result, "_meta": meta}
    return {"jsonrpc": "2.0", "id": call.id, "result": result}


def failure(id: RequestId | None, error: RpcFailure) -> JsonObject:
    shown: JsonObject = {"code": error.code, "message": error.message}
    if error.data is not None:
        shown["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": shown}


def progress(token: RequestId, count: int, text: str) -> JsonObject:
    params: JsonObject = {"progressToken": token, "progress": count, "message": text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def initialized(call: McpCall, instructions: str) -> JsonObject:
    """The result of ``initialize``: the client's version, or the newest of its kind."""
    asked = call.params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in HANDSHAKE else HANDSHAKE[-1],
        "capabilities": {"tools": {}},
        "serverInfo": {**SERVER},
        "instructions": instructions,
    }


def discovered(instructions: str) -> JsonObject:
    """The result of ``server/discover``."""
    return {
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "extensions": {TASKS: {}}},
        "instructions": instructions,
        **CACHED,
    }


CACHED: JsonObject = {"ttlMs": 0, "cacheScope": "private"}
"""In what clients may cache: an agent may be installed meanwhile."""


def require_tasks(call: McpCall) -> None:
    """Raises ``RpcFailure`` for a request about tasks of a client that does not declare them."""
    if not call.is_modern:
        raise RpcFailure(METHOD_NOT_FOUND, "Method not found", call.method)
    if not call.takes_tasks:
        required: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise RpcFailure(MISSING_CAPABILITY, "Missing required client capability", required)
