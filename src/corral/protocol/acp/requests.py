"""The parameters of every request that the client sends, as the protocol defines them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from corral.errors import PromptError
from corral.protocol.acp.quirks import AcpQuirks
from corral.values import Json, McpServer

PROTOCOL_VERSION = 1
"""If we offer 2, some agents switch to another schema and reject our parameters."""


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image", rename="camel"):
    data: str
    """Base64."""
    mime_type: str


class AudioBlock(msgspec.Struct, frozen=True, tag_field="type", tag="audio", rename="camel"):
    data: str
    mime_type: str


class Resource(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ResourceBlock(msgspec.Struct, frozen=True, tag_field="type", tag="resource"):
    """A file with its content, for agents that offer ``embeddedContext``."""

    resource: Resource


class LinkBlock(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="type",
    tag="resource_link",
    rename="camel",
):
    """A file by its URI. The agent reads it."""

    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None


Block: TypeAlias = TextBlock | ImageBlock | AudioBlock | ResourceBlock | LinkBlock


class Offer(msgspec.Struct, frozen=True):
    """What this client does for the agent. A call of any other method is rejected."""

    read_files: bool = False
    write_files: bool = False

    def covers(self, method: str) -> bool:
        return (self.read_files and method == "fs/read_text_file") or (
            self.write_files and method == "fs/write_text_file"
        )


def initialize(offer: Offer, name: str, version: str) -> dict[str, Json]:
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": {
            "fs": {"readTextFile": offer.read_files, "writeTextFile": offer.write_files},
            "terminal": False,
        },
        "clientInfo": {"name": name, "version": version},
    }


def authenticate(method_id: str, meta: dict[str, Json] | None = None) -> dict[str, Json]:
    return {"methodId": method_id, **({"_meta": meta} if meta else {})}


def session(cwd: str, servers: Iterable[McpServer], session_id: str = "") -> dict[str, Json]:
    """Parameters of ``session/new``; with an id of ``session/load`` and ``session/resume``."""
    named: dict[str, Json] = {"sessionId": session_id} if session_id else {}
    return {**named, "cwd": cwd, "mcpServers": [mcp_server(server) for server in servers]}


def mcp_server(server: McpServer) -> dict[str, Json]:
    if server.url is not None:
        headers = _pairs(server.headers)
        return {"type": "http", "name": server.name, "url": server.url, "headers": headers}
    program, *args = server.command or ("",)
    return {
        "name": server.name,
        "command": program,
        "args": list(args),
        "env": _pairs(server.env),
    }


def choose_model(
    quirks: AcpQuirks, session_id: str, model: str
) -> tuple[str, dict[str, Json]] | None:
    """The method and its parameters; ``None`` if the agent cannot choose a model."""
    match quirks.set_model:
        case "session/set_model":
            return "session/set_model", {"sessionId": session_id, "modelId": model}
        case "session/set_config_option":
            return "session/set_config_option", config_option(session_id, "model", model)
        case None:
            return None


def config_option(session_id: str, config_id: str, value: str) -> dict[str, Json]:
    return {"sessionId": session_id, "configId": config_id, "value": value}


def prompt(quirks: AcpQuirks, session_id: str, blocks: Sequence[Block]) -> dict[str, object]:
    """Raises ``PromptError`` for an empty prompt: some agents hang after one."""
    if not any(not isinstance(block, TextBlock) or block.text.strip() for block in blocks):
        raise PromptError("the prompt is empty", hint="Describe the task.")
    first, *rest = blocks
    if isinstance(first, TextBlock) and first.text.startswith(quirks.command_prefixes):
        first = TextBlock(quirks.command_escape + first.text)
    return {"sessionId": session_id, "prompt": [first, *rest]}


def _pairs(values: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]
