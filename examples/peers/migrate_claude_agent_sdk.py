"""The script before: claude-agent-sdk, for one agent."""

import asyncio
import sys

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    TextBlock,
    ToolUseBlock,
)

OPTIONS = ClaudeAgentOptions(
    system_prompt={"type": "preset", "preset": "claude_code", "append": "Be brief."},
    allowed_tools=["Read", "Glob", "Grep", "Edit", "Write"],
    disallowed_tools=["Bash", "WebFetch", "WebSearch"],
    permission_mode="acceptEdits",
)


async def main() -> None:
    async with ClaudeSDKClient(options=OPTIONS) as client:
        for prompt in ("Fix the typo in README.md", "What did you change?"):
            async with asyncio.timeout(300):
                await client.query(prompt)
                async for message in client.receive_response():
                    if isinstance(message, AssistantMessage):
                        for block in message.content:
                            if isinstance(block, TextBlock):
                                print(block.text, end="")
                            elif isinstance(block, ToolUseBlock):
                                print(f"[{block.name}]")
                    elif isinstance(message, ResultMessage):
                        if message.is_error:
                            sys.exit(f"failed: {message.subtype}")
                        tokens = sum(
                            message.usage[name] for name in ("input_tokens", "output_tokens")
                        )
                        print(f"\n{message.duration_ms} ms, {tokens} tokens")


asyncio.run(main())
