"""A script for claude-agent-sdk, moved to corral: two prompts in one session, with its tool calls.

    python migrate_claude_agent_sdk.py claude
    python migrate_claude_agent_sdk.py gemini

``allowed_tools`` and ``permission_mode`` become one policy, which every agent enforces. The name of
the agent is an argument: nothing else changes.

Lines of code: 16; with claude-agent-sdk: 29 (peers/migrate_claude_agent_sdk.py)
"""

import asyncio
import sys

import corral


async def main(agent: str) -> None:
    async with corral.session(agent, policy="edits", system_prompt="Be brief.") as session:
        for prompt in ("Fix the typo in README.md", "What did you change?"):
            async for event in session.prompt(prompt, timeout=300):
                if event.type == "text":
                    print(event.delta, end="")
                elif event.type == "tool_use":
                    print(f"[{event.name}] {event.title or ''}")
                elif event.type == "done":
                    if event.error:
                        sys.exit(f"failed: {event.error.message}")
                    print(f"\n{event.duration_ms} ms, {event.usage.output} tokens")


asyncio.run(main(sys.argv[1]))
