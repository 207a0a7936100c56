"""Messages for an MCP server of callers, without a transport."""

from __future__ import annotations

from typing import Any

from support.builtin_agent import MODELS, BuiltinAgent, model_env

from corral._serving.allowance import Allowance
from corral._serving.mcp import wire
from corral._serving.mcp.server import McpService


def allowance(ours: BuiltinAgent, script: Any, **fields: Any) -> Allowance:
    """The built-in agent with a scripted model, for callers."""
    options = {"env": model_env(ours.add_lane(script)), "retries": 0, **fields.pop("options", {})}
    given: dict[str, Any] = {
        "set_by": "the one who started corral mcp",
        "agents": ("corral",),
        "models": (MODELS["gemini"],),
        "folders": (str(ours.workspace),),
        "timeout": 60.0,
        "options": options,
        **fields,
    }
    return Allowance(**given)


def modern(*, tasks: bool = False, **capabilities: Any) -> dict[str, Any]:
    """The ``_meta`` of a request of 2026-07-28."""
    extensions: dict[str, Any] = {wire.TASKS: {}} if tasks else {}
    return {
        f"{wire.META}protocolVersion": wire.MODERN,
        f"{wire.META}clientCapabilities": {"extensions": extensions, **capabilities},
    }


class Connection:
    """A client that sends one message at a time."""

    def __init__(self, server: McpService) -> None:
        self.server = server
        self.notes: list[dict[str, Any]] = []
        self._count = 0

    async def send(self, message: Any) -> Any:
        return await self.server.handle(message, self.notes.append)

    async def request(self, method: str, _meta: Any = None, **params: Any) -> Any:
        """The reply to a request."""
        self._count += 1
        if _meta is not None:
            params["_meta"] = _meta
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        return await self.send(message)

    async def call(self, tool: str, _meta: Any = None, **arguments: Any) -> Any:
        """The result of a tool."""
        reply = await self.request("tools/call", _meta, name=tool, arguments=arguments)
        return reply["result"]
