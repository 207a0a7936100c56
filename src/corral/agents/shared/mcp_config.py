"""MCP servers in the settings of agents. Secrets are references to environment variables.

The agents replace the references with the values of the variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from corral.options import RunOptions
from corral.values import Json, McpServer


def secret_references(number: int, server: McpServer, naming: str = "${{{}}}") -> dict[str, Json]:
    """References in place of the values of a server's variables or headers. ``naming`` is the
    agent's format of a reference."""
    hidden = {**server.env, **server.headers}
    return {name: naming.format(secret_name(number, name)) for name in hidden}


def secret_variables(run: RunOptions) -> Mapping[str, str]:
    """The variables with the values."""
    return {
        secret_name(number, name): value
        for number, server in enumerate(run.mcp_servers)
        for name, value in {**server.env, **server.headers}.items()
    }


def server_config(number: int, server: McpServer) -> dict[str, Json]:
    """A server in the most common format: ``httpUrl``, or a command."""
    hidden: Json = secret_references(number, server)
    if server.url is not None:
        return {"httpUrl": server.url, "headers": hidden}
    command, *args = server.command
    return {"command": command, "args": [*args], "env": hidden}


def secret_name(number: int, name: str) -> str:
    """A name that agents recognize as a secret and hide from their shell."""
    return f"CORRAL_MCP_SECRET_{number}_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"
