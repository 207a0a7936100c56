"""Fill Node's compile cache of an installed agent: one scripted prompt with each of its interfaces,
so that the modules are those of a real run. No key is used and nothing is spent."""

from __future__ import annotations

import tempfile

from corral.agents import registry
from corral.agents.spec import AgentSpec
from corral.errors import ConfigError
from corral.policy import Policy
from corral.sessions.api import run
from corral.system import compile_cache, programs
from corral.testing import ModelServer, Turn


async def fill(agent: AgentSpec, found: programs.FoundProgram) -> None:
    """Raises ``CorralError``; then there is no cache."""
    with compile_cache.filling(agent, found) as program:
        for each in registry.all_agents():
            if each.package == agent.package:
                await _prompt(each, program)


async def _prompt(agent: AgentSpec, program: str) -> None:
    probe = agent.probe
    if probe is None:
        raise ConfigError(f"{agent.name} has no probe: its model cannot be scripted")
    with tempfile.TemporaryDirectory(prefix="corral-fill-") as folder:
        async with ModelServer(lambda _: Turn(text="Nothing to do.")) as server:
            await run(
                agent.name,
                "There is nothing to do.",
                check=True,
                cwd=folder,
                program=program,
                policy=Policy(),
                sandbox="off",
                inherit="nothing",
                mcp_servers=(),
                model=probe.model,
                env={probe.url_env: server.url, probe.key_env: "no-key-is-needed"},
                keep=False,
                timeout=600,
            )
