"""One run through claude-agent-sdk: ``claude_sdk_run.py PROGRAM PROMPT``."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

sdk = import_module("claude_agent_sdk")


async def main() -> None:
    options = sdk.ClaudeAgentOptions(cli_path=sys.argv[1])
    async for message in sdk.query(prompt=sys.argv[2], options=options):
        if isinstance(message, sdk.AssistantMessage):
            sys.stdout.write(message.content[0].text)


asyncio.run(main())
