"""``python_tool.py`` with claude-agent-sdk: a server around the function, and text blocks."""

import asyncio
import sys
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)

SERVICES = {"api": "healthy", "queue": "degraded since 09:40"}


@tool("service_status", "The status of a service: api or queue.", {"name": str})
async def service_status(args: dict[str, Any]) -> dict[str, Any]:
    text = SERVICES.get(args["name"], "unknown service")
    return {"content": [{"type": "text", "text": text}]}


async def main() -> None:
    server = create_sdk_mcp_server("status", tools=[service_status])
    options = ClaudeAgentOptions(
        mcp_servers={"status": server}, allowed_tools=["mcp__status__service_status"]
    )
    async for message in query(prompt=sys.argv[1], options=options):
        if isinstance(message, ResultMessage):
            if message.is_error:
                sys.exit(f"failed: {message.subtype} {message.result}")
            print(message.result)
            used = message.usage or {}
            print(f"{used.get('input_tokens', 0) + used.get('output_tokens', 0)} tokens")


asyncio.run(main())
