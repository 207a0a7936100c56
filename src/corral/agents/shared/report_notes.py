"""Notes that the policy reports of several agents have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.options import OWN_SERVER, RunOptions
from corral.policy import Capability, Verdict

OWN_DEFAULT = "the agent's own default: it asks for nothing"
UNASKED_BY_DEFAULT = "with mode='native' it does not ask about what it allows by itself"
ASKED = "each call asks for permission"
ASK_DENIED = "ask→deny: no one can answer, so it is not offered to the model"
HEADLESS_DENIED = "ask→deny: an agent that runs one prompt cannot ask"
NOT_OFFERED = "not offered to the model"
NO_SERVERS = "it takes no MCP servers"
SHELL_REACHES_NETWORK = "a permitted shell reaches the network: this agent cannot restrict it"
READS_OUTSIDE = "outside the workspace, reading follows the rule for the shell"
IN_FOLDERS = "in the workspace and the writable folders"
WRITES_INSIDE = f"{IN_FOLDERS}, except protected names"
BYPASSABLE = "deny rules over a free shell can be bypassed (env, sh -c, aliases)"


def listed(names: Sequence[str]) -> str:
    """Of a capability under ``allow_tools``: ``names`` are its tools in that list."""
    return f"allow_tools: {', '.join(names) or 'not listed'}"


def own_functions(run: RunOptions, own: Verdict, others: Verdict) -> list[str]:
    """Of the MCP row: the verdict for the server of the caller's own functions, where there is
    such a server and the verdict for other servers differs."""
    has_own = any(server.name == OWN_SERVER for server in run.mcp_servers)
    return [f"the caller's own functions: {own}"] if has_own and own != others else []


def shell_can(capability: Capability) -> str:
    return f"a permitted shell can {capability} files anyway"


def applying(notes: Iterable[tuple[object, str]]) -> list[str]:
    """The texts of a table of (condition, text) whose condition is true."""
    return [text for condition, text in notes if condition]


def other_hooks(run: RunOptions) -> tuple[str, ...]:
    """Why ``on_tool_call`` may not have the last word."""
    inherits = run.inherit == "project"
    return ("the repository's own hooks may change a call again",) if inherits else ()
