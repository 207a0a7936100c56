"""The options of a session whose agent may call the caller's own functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from corral.agents.spec import InProcess
from corral.errors import ConfigError
from corral.policy import Policy
from corral.sessions.prepared_run import PreparedRun
from corral.values import McpServer

if TYPE_CHECKING:
    from corral.sessions.tools.tools import GivenTools

NOT_OPEN = McpServer(name="corral", url="http://127.0.0.1:1/mcp", own=True)
"""In place of the tool server, for the checks before it is open."""


def with_own_tools(
    given: Mapping[str, object],
    tools: GivenTools,
    prepared: PreparedRun,
    server: McpServer | None = None,
) -> dict[str, object]:
    """The options with the server of the functions. An agent that runs in this process calls them
    without one. Raises ``ConfigError``."""
    options: dict[str, object] = dict(given)
    policy = options.get("policy") or Policy()
    if isinstance(policy, Policy) and policy.mcp is None and policy.own_mcp is None:
        # A caller who gives a function wants the agent to call it.
        options["policy"] = replace(policy, own_mcp="allow")
    if isinstance(prepared.agent.transport, InProcess):
        return options
    if not isinstance(tools, Sequence) and tools.agent_hooks:
        raise ConfigError(
            f"{prepared.agent.name} does not ask before each of its calls:"
            " agent_hooks are not available with it",
            hint="Give hooks for your own functions, or take an agent of this process.",
        )
    if prepared.run.replay is not None:
        raise ConfigError(
            "a recording calls no tools: replay and tools both given",
            hint="Test the functions by themselves, or drive the agent with a ModelServer.",
        )
    options["mcp_servers"] = [*prepared.run.mcp_servers, server or NOT_OPEN]
    return options
