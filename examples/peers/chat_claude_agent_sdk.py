"""A chat with an agent that may edit files and asks before anything else. Without a diff, without
undo and without a file of the conversation."""

import asyncio
import sys

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    PermissionResultAllow,
    PermissionResultDeny,
    ResultMessage,
    TextBlock,
)


async def ask(tool, given, context):
    if await asyncio.to_thread(input, f"{tool} {given}: allow (y)? ") == "y":
        return PermissionResultAllow()
    return PermissionResultDeny(message="The user denied it.")


async def main():
    resume = sys.argv[1] if len(sys.argv) > 1 else None
    options = ClaudeAgentOptions(permission_mode="acceptEdits", can_use_tool=ask, resume=resume)
    async with ClaudeSDKClient(options=options) as client:
        while True:
            try:
                await client.query(await asyncio.to_thread(input, "> "))
            except EOFError:
                break
            async for message in client.receive_response():
                if isinstance(message, AssistantMessage):
                    for block in message.content:
                        if isinstance(block, TextBlock):
                            print(block.text)
                elif isinstance(message, ResultMessage):
                    print(f"${message.total_cost_usd} · continue with {message.session_id}")


asyncio.run(main())
