"""The name of a model, as the agent that gets it knows it.

A person may write the name with its vendor (``vendor:name``, ``vendor/name``), or without one. The
built-in agent needs ``vendor:name``. An agent with the models of one vendor takes the bare name; a
model of another vendor is refused here, before the agent asks for it.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.agents import registry
from corral.agents.spec import AgentSpec
from corral.errors import ConfigError
from corral.models.families import vendor_of
from corral.models.registry import canonical, find_provider, is_model_name
from corral.options import RunOptions
from corral.system import environment


def with_model_name(agent: AgentSpec, run: RunOptions, model: str) -> RunOptions:
    """The run with the model's name in the form of the agent. Raises ``ConfigError`` for a model
    that the agent cannot have."""
    if agent.for_run is not None:
        return replace(run, model=canonical(model))
    if not agent.vendor:
        return run
    return replace(run, model=_bare_name(agent, run, model))


def _bare_name(agent: AgentSpec, run: RunOptions, model: str) -> str:
    """Behind a base URL of the user any service may answer, so any bare name and any name with a
    slash is its own there."""
    variable = agent.probe.url_env if agent.probe is not None else ""
    has_own_service = bool(environment.gather(agent, run).agent_values.get(variable))
    full = model if has_own_service else canonical(model)
    if is_model_name(full):
        prefix, _, bare = full.partition(":")
        vendor = find_provider(prefix).name
    else:
        vendor, bare = ("" if has_own_service else vendor_of(full)), full
    if not vendor or vendor == agent.vendor:
        return bare
    raise ConfigError(
        f"{agent.title} has no model of another vendor: {model}",
        hint=_suggestion(f"{vendor}:{bare}", bare, vendor),
    )


def _suggestion(full: str, bare: str, vendor: str) -> str:
    others = [each for each in registry.all_agents() if each.vendor == vendor]
    own = f"corral's own agent runs it: --model {full} without --agent (model={full!r})"
    if not others:
        return f"{own}."
    name = next((alias for each in others for alias in each.aliases[:1]), others[0].name)
    return f"{own}; {others[0].title} too: --agent {name} --model {bare}."
