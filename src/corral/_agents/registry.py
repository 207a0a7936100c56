"""Finds agents by name.

``gemini-cli`` is looked up in ``gemini/spec.py`` first. Other packages add agents with the entry
point group ``corral.agents``; each entry names a tuple of ``AgentSpec`` records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corral._agents.spec import AgentSpec
from corral._core.lookup import SpecLookup
from corral.errors import UnknownAgent

LOOKUP = SpecLookup("corral._agents", "AGENTS", AgentSpec, group="corral.agents")
DEFAULT_AGENT = "gemini-acp"
"""It can ask for permission, reports thoughts and serves many prompts."""


def find(name: str) -> AgentSpec:
    """The agent with this name or alias; a command line is an agent too. Raises ``UnknownAgent``
    with the nearest name."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownAgent(f"an agent name must be a string, got: {name!r}")
    if names_a_model(full_name(name)):
        return find("corral")
    if len(name.split()) > 1 or "/" in name:
        from corral._agents import acp_command

        return acp_command.known_agent(name, all_agents(), find) or acp_command.agent_for(name)
    wanted = name.strip().lower().replace("_", "-")
    agent = LOOKUP.find(wanted, wanted.split("-")[0])
    if agent is not None:
        return agent
    if ":" in name:
        from corral._models.registry import split_model

        split_model(name)  # raises UnknownProvider, with the known vendors
    hint = LOOKUP.suggestion(wanted, _model_hint(wanted))
    raise UnknownAgent(f"no agent is called {name!r}", hint=hint)


def twin_that_asks(name: str) -> AgentSpec | None:
    """The agent that asks for permission and is of the same product as the agent with this name,
    which cannot."""
    agents = [*all_agents()]
    titles = [each.title for each in agents if each.name == name and not each.asks]
    return next((each for each in agents if each.asks and each.title in titles), None)


def _model_hint(name: str) -> str:
    """What to write if the name is that of a model or of a vendor; else empty."""
    from corral._models import registry as models

    vendor = models.vendor_of(name)
    model = f"{vendor}:{name}"
    if not vendor and any(name == each.name for each in models.all_providers()):
        vendor, model = name, f"{name}:MODEL"
    return f"For a model, name no agent: --model {model} (model={model!r})." if vendor else ""


def names_a_model(name: str) -> bool:
    """Whether this is ``vendor:model``, a model for the built-in agent."""
    if ":" not in name:
        return False
    from corral._models.registry import is_model_name

    return is_model_name(name)


def full_name(name: str) -> str:
    """``vendor:model`` for ``vendor/model`` with a known vendor; any other name as it is."""
    if "/" not in name:
        return name
    from corral._models.registry import canonical

    return canonical(name)


def default(model: str | None) -> str:
    """The agent if none is named: ours for ``vendor:model``, else the default. Raises
    ``UnknownProvider`` for an unknown vendor."""
    model = None if model is None else full_name(model)
    if model is None or ":" not in model:
        return DEFAULT_AGENT
    from corral._models.registry import split_model

    split_model(model)
    return model


def from_table(name: str, table: Mapping[str, object], source: str) -> AgentSpec:
    """The agent that a table with a ``command`` describes; see ``configured.py``."""
    from corral._agents.configured import declared_agent

    return declared_agent(name, table, source)


def from_command(command: str) -> AgentSpec:
    """Any program that speaks the Agent Client Protocol, also one with the name of a known one."""
    from corral._agents.acp_command import agent_for

    return agent_for(command)


def options_of(table: Mapping[str, object]) -> dict[str, object]:
    """The entries of such a table that are options of the agent's runs."""
    from corral._agents.configured import OWN

    return {key: value for key, value in table.items() if key not in OWN}


def from_registry(registry: bytes, id: str, source: str) -> AgentSpec:
    """An agent of the Agent Client Protocol's registry."""
    from corral._agents.configured import listed_agent

    return listed_agent(registry, id, source)


def all_agents() -> Iterator[AgentSpec]:
    """All agents: ours by module name, then those of other packages."""
    return LOOKUP.all()
