"""JSON-RPC 2.0, one message per line, as the Agent Client Protocol and MCP use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from corral.values import Json, JsonObject

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002
REQUEST_CANCELLED = -32800
CLOSED = -32099
"""Our own code, in the range reserved for implementations: the other side has ended."""

Id: TypeAlias = int | float | str


class RpcError(msgspec.Struct):
    """The error of a call."""

    code: int | float = 0
    message: str = ""
    data: Json = None


class RpcFrame(msgspec.Struct):
    """A call, a notification (without an id) or a reply (without a method)."""

    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Json = None
    result: Json = None
    error: RpcError | None = None


class SendBytes(msgspec.Struct, frozen=True):
    """Write these bytes to the other side."""

    data: bytes


def rpc_line(members: Mapping[str, object]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **members}) + b"\n"


def result_reply(id: Id, result: object) -> SendBytes:
    return SendBytes(rpc_line({"id": id, "result": result}))


def error_reply(id: Id | None, code: int, message: str, data: Json = None) -> SendBytes:
    """The error reply to a call; with ``None`` to a line whose id is not known."""
    error: JsonObject = {"code": code, "message": message}
    return SendBytes(
        rpc_line({"id": id, "error": error if data is None else {**error, "data": data}})
    )


def our_id(id: Id) -> int:
    """Our ids are integers. Some programs send them back as text or as 1.0. Returns -1, which is
    never the id of a call, for anything else."""
    if isinstance(id, str):
        return int(id) if len(id) < 20 and id.isascii() and id.isdecimal() else -1
    return int(id) if isinstance(id, int) or id.is_integer() else -1
