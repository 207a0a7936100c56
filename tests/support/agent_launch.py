"""Make an agent's launch without a session: the policy is compiled as ``prepare`` does it."""

from __future__ import annotations

from msgspec.structs import replace

from corral.agents.spec import AgentSpec, CompiledPolicy, Launch, LaunchContext, compile_for
from corral.options import RunOptions

NOT_COMPILED = CompiledPolicy(())
"""For a ``LaunchContext`` that ``launch_of`` completes."""


def launch_of(
    agent: AgentSpec,
    run: RunOptions,
    place: LaunchContext,
    prompt: str = "",
    resume: str | None = None,
) -> Launch:
    """What would be started for this run, with the run's own policy."""
    compiled = compile_for(agent, run)
    return agent.launch(run, replace(place, compiled=compiled), prompt, resume)
