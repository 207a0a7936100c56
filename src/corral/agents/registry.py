"""The agents we know, found by name.

An agent's module is imported only when a name asks for it: ``gemini-cli`` is
looked for in ``gemini/spec.py`` first. Other packages add theirs through the entry
point group ``corral.agents``, each entry naming a tuple of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, cast

from corral import agents
from corral.agents.spec import AgentSpec
from corral.errors import UnknownAgent

ENTRY_POINTS = "corral.agents"
DEFAULT_AGENT = "gemini-acp"
"""It can ask, think aloud and stay warm."""


def find(name: str) -> AgentSpec:
    """The agent of that name or alias; a command line is an agent too. Raises
    ``UnknownAgent`` with the nearest names."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownAgent(f"an agent name must be a string, got: {name!r}")
    if names_a_model(name):
        return find("corral")
    if len(name.split()) > 1 or "/" in name:
        from corral.agents.acp_command import agent_for

        return agent_for(name)
    wanted = name.strip().lower().replace("_", "-")
    stem = wanted.split("-")[0]
    for agent in _of_module(stem):
        if wanted == agent.name or wanted in agent.aliases:
            return agent
    known: list[str] = []
    for agent in all_agents():
        if wanted == agent.name or wanted in agent.aliases:
            return agent
        known += [agent.name, *agent.aliases]
    if ":" in name:
        from corral.models.registry import split_model

        split_model(name)  # says which vendors there are
    from difflib import get_close_matches

    near = get_close_matches(wanted, known, 1, 0.5)
    names = ", ".join(sorted({agent.name for agent in all_agents()}))
    raise UnknownAgent(
        f"no agent is called {name!r}",
        hint=f"Did you mean {near[0]!r}? Known: {names}." if near else f"Known: {names}.",
    )


def names_a_model(name: str) -> bool:
    """Whether this is ``vendor:model``, which our own agent runs on."""
    if ":" not in name:
        return False
    from corral.models.registry import is_model_name

    return is_model_name(name)


def default(model: str | None) -> str:
    """The agent where none is named: ours for ``vendor:model``, else the default. Raises
    ``UnknownProvider`` for a vendor that nobody knows."""
    if model is None or ":" not in model:
        return DEFAULT_AGENT
    from corral.models.registry import split_model

    split_model(model)
    return model


def from_table(name: str, table: Mapping[str, Any], source: str) -> AgentSpec:
    """The agent that a table with a ``command`` describes; see ``configured.py``."""
    from corral.agents.configured import declared_agent

    return declared_agent(name, table, source)


def options_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """What of such a table are options of its runs."""
    from corral.agents.configured import OWN

    return {key: value for key, value in table.items() if key not in OWN}


def from_registry(registry: bytes, id: str, source: str) -> AgentSpec:
    """An agent of the Agent Client Protocol's registry."""
    from corral.agents.configured import listed_agent

    return listed_agent(registry, id, source)


def all_agents() -> Iterator[AgentSpec]:
    """All of them: ours by module name, then those of other packages."""
    from importlib.metadata import entry_points
    from pkgutil import iter_modules

    for module in sorted(info.name for info in iter_modules(agents.__path__)):
        yield from _of_module(module)
    for entry in entry_points(group=ENTRY_POINTS):
        yield from cast("tuple[AgentSpec, ...]", entry.load())


def _of_module(stem: str) -> tuple[AgentSpec, ...]:
    if not stem.isidentifier():
        return ()
    package = f"{agents.__name__}.{stem}"
    for name in (f"{package}.spec", package):
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, package):
                raise
            continue
        return cast("tuple[AgentSpec, ...]", getattr(module, "AGENTS", ()))
    return ()
