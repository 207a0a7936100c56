"""A tool of a Pydantic AI agent that lets a coding agent work in the current folder."""

from pydantic_ai import Agent, ModelRetry

import corral

agent = Agent(instructions="Leave changes of files to the coding agent.")


@agent.tool_plain
async def ask_coding_agent(task: str) -> str:
    """Let a coding agent work in this project. It can read and edit files. Returns its answer."""
    result = await corral.run(prompt=task, policy="edits", timeout="10m")
    if result.error is not None:
        raise ModelRetry(f"{result.status}: {result.error.message}")
    return result.text
