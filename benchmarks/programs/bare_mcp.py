"""A minimal MCP server of the official SDK, with one tool."""

from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server


async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"prompt": {"type": "string"}}}
    return types.ListToolsResult(tools=[types.Tool(name="run", input_schema=schema)])


async def main() -> None:
    server: Server[Any] = Server("bare", on_list_tools=list_tools)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


anyio.run(main)
