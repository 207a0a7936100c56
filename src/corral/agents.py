# ruff: noqa: I001 (it would split ``import A as A, B as B``)
"""What an agent is, for packages that add one: the record and what it is made of.

::

    from msgspec.structs import replace

    from corral.agents import agent_for

    AGENTS = (replace(agent_for("mine --acp"), name="mine-acp"),)

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._agents.acp_command import agent_for as agent_for, keyed_agent as keyed_agent
    from corral._agents.grants import Grants as Grants
    from corral._agents.spec import (
        AcpTransport as AcpTransport,
        AgentControls as AgentControls,
        AgentSpec as AgentSpec,
        CommandHook as CommandHook,
        Enforced as Enforced,
        Launch as Launch,
        LaunchContext as LaunchContext,
        MeterRoute as MeterRoute,
        Package as Package,
        Probe as Probe,
        StreamTransport as StreamTransport,
        TurnEnding as TurnEnding,
    )
    from corral._protocol.acp.quirks import AcpQuirks as AcpQuirks

_HOMES = {
    "corral._agents.acp_command": "agent_for keyed_agent",
    "corral._agents.grants": "Grants",
    "corral._agents.spec": "AcpTransport AgentControls AgentSpec CommandHook Enforced Launch"
    " LaunchContext MeterRoute Package Probe StreamTransport TurnEnding",
    "corral._protocol.acp.quirks": "AcpQuirks",
}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
