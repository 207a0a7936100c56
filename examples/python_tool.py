"""A Python function as a tool of the Gemini CLI, which calls it while it works.

    python python_tool.py 'Which service is not healthy?'

The function runs in this process; its docstring and its types are what the model sees.

Lines of code: 8; with claude-agent-sdk: 22 (peers/python_tool_claude_agent_sdk.py)
"""

import sys

import corral

SERVICES = {"api": "healthy", "queue": "degraded since 09:40"}


def service_status(name: str) -> str:
    """The status of a service: api or queue."""
    return SERVICES.get(name, "unknown service")


result = corral.run_sync("gemini", sys.argv[1], tools=[service_status], check=True)
print(result.text)
print(f"{result.usage.total} tokens")
