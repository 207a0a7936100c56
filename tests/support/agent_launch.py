"""An agent's launch without a session, with the policy compiled as ``prepare`` does it; and the
error that its end means."""

from __future__ import annotations

from typing import TypedDict

from msgspec.structs import replace

from corral._agents.grants import Grants, compute_grants
from corral._agents.report import CompiledPolicy, compile_for
from corral._agents.spec import AgentControls, AgentSpec, Launch, LaunchContext, TurnEnding
from corral._protocol.ndjson import TurnEnd
from corral.errors import CorralError
from corral.options import RunOptions
from corral.policy import Policy


class NotCompiled(TypedDict):
    grants: Grants
    controls: AgentControls


NOT_COMPILED: NotCompiled = {
    "grants": compute_grants(Policy(), RunOptions(agent="none"), {}, answered=False),
    "controls": AgentControls(),
}
"""For a ``LaunchContext`` that ``launch_of`` completes."""


def compile_policy(
    agent: AgentSpec, policy: Policy, run: RunOptions | None = None
) -> CompiledPolicy:
    """A policy as it is compiled for a run of the agent."""
    run = replace(run or RunOptions.build(agent.name), policy=policy)
    if agent.normalize_policy is not None:
        run = replace(run, policy=agent.normalize_policy(policy, run))
    return compile_for(agent, run)


def decisions(compiled: CompiledPolicy) -> dict[str, str]:
    """The verdicts of the report with their enforcers."""
    return {row.capability: row.decision for row in compiled.report}


def launch_of(
    agent: AgentSpec,
    run: RunOptions,
    place: LaunchContext,
    prompt: str = "",
    resume: str | None = None,
) -> Launch:
    """What would be started for this run, with the run's own policy."""
    compiled = compile_policy(agent, run.policy, run)
    place = replace(place, grants=compiled.grants, controls=compiled.controls)
    return agent.launch(run, place, prompt, resume)


def explained(
    agent: AgentSpec,
    finish: TurnEnd | None = None,
    code: int | None = 0,
    *,
    signal: int | None = None,
    stderr: str = "",
    answered: bool = False,
    run: RunOptions | None = None,
) -> CorralError | None:
    """The error of a turn that ended so. Without a code, a signal ended it."""
    signal = 15 if code is None and signal is None else signal
    run = run or RunOptions.build(agent.name)
    ending = TurnEnding(
        code=code, signal=signal, stderr=stderr, finish=finish, answered=answered, run=run
    )
    return agent.explain(ending)
