"""Find the agent that a kit checks or attacks."""

from __future__ import annotations

from corral.agents import registry
from corral.agents.spec import AgentSpec
from corral.options import RunOptions
from corral.system import config


def agent_spec(name: str) -> AgentSpec:
    """The spec of an agent. ``vendor:model`` is the built-in agent with that vendor's model."""
    found = config.find_agent(name)
    if found.for_run is not None and registry.names_a_model(name):
        return found.for_run(RunOptions.build(found.name, {"model": name}))
    return found
