"""A command line that starts a known agent: ``NAME --acp``, ``/opt/bin/NAME``.

Such a command gets the spec of that agent, with its policy, credentials and quirks, instead of the
one for any program that speaks the Agent Client Protocol.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from corral.agents.spec import AcpTransport, AgentSpec
from corral.errors import ConfigError, UnknownAgent

AGENTS = ()
_SUFFIXES = (".exe", ".cmd", ".js")


def agent_of(
    command: str, known: Iterable[AgentSpec], find: Callable[[str], AgentSpec]
) -> AgentSpec | None:
    """The agent that this command starts; None if it starts another program. Raises ``ConfigError``
    for a known program with arguments that its spec does not have."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words:
        return None
    program, arguments = _name(words[0]), tuple(words[1:])
    agents = [each for each in known if program in each.programs]
    if not agents:
        return None
    found = _with_arguments(agents, arguments) if arguments else _usual(agents, program, find)
    if found is None:
        raise _refusal(command, _usual(agents, program, find))
    return replace(found, program=words[0]) if os.path.dirname(words[0]) else found


def _name(program: str) -> str:
    name = os.path.basename(program)
    return next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end)), name)


def _with_arguments(agents: list[AgentSpec], arguments: tuple[str, ...]) -> AgentSpec | None:
    for agent in agents:
        if isinstance(agent.transport, AcpTransport) and agent.transport.arguments == arguments:
            return agent
    return None


def _usual(agents: list[AgentSpec], program: str, find: Callable[[str], AgentSpec]) -> AgentSpec:
    """The agent that the program's name alone means."""
    try:
        named = find(program)
    except UnknownAgent:
        return agents[0]
    return named if named in agents else agents[0]


def _refusal(command: str, agent: AgentSpec) -> ConfigError:
    return ConfigError(
        f"{command!r} starts {agent.title}, whose arguments corral sets itself",
        hint=f"Use --agent {agent.name} and the options of corral, such as --model and --policy; or"
        " declare the command in corral.toml to run it as it is.",
    )
