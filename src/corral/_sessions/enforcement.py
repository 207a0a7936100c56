"""What enforces the policy of a run: the agent's own controls, and the sandbox where it is needed.

Theory of operation
-------------------
``decide`` compiles the policy for the agent, once; the report says who enforces each part. What
then happens depends on the option ``sandbox``:

- ``needed``, the default: if the agent enforces all of it, the machine is not even examined. If
  nothing enforces some part, the report is made for a run in a sandbox, from the same controls. If
  that enforces every part and the machine has a complete sandbox, the run gets it.
- ``auto`` and ``require``: the machine's sandbox, whatever the agent enforces.
- ``off`` and ``agent``: no sandbox of corral.

A run with ``hidden`` folders always gets a complete sandbox, or is refused.

A run with ``strict=False`` accepts parts that nothing enforces, so it needs no sandbox. In a replay
nothing runs that could be limited: the report is that of the sandbox, and there is none.

``check`` refuses what nothing enforces. All are called before anything is started or spent.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from corral._agents import registry
from corral._agents.report import (
    CompiledPolicy,
    SandboxLimits,
    compile_for,
    for_sandbox,
    with_failed,
)
from corral._agents.spec import AgentSpec, InProcess
from corral._system import config
from corral.errors import ConfigError, CorralError, PolicyNotEnforceable, SandboxFailed
from corral.options import RunOptions
from corral.policy import Capability

if TYPE_CHECKING:
    from corral._system.sandbox.sandbox import Support


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy of a run is enforced."""

    run: RunOptions
    compiled: CompiledPolicy
    sandbox: Support | None = None
    reason: str = ""
    """Why there is a sandbox."""
    obstacle: CorralError | None = None
    """Why a sandbox that is needed cannot be used."""
    alone: CompiledPolicy | None = None
    """The policy as the agent alone enforces it, if there is a sandbox."""


def decide(agent: AgentSpec, run: RunOptions, cwd: str) -> Decision:
    """Raises ``SandboxFailed`` if a sandbox is required that the machine does not have, and
    ``ConfigError`` for a folder around which no useful sandbox can be built."""
    if agent.normalize_policy is not None:
        run = msgspec.structs.replace(run, policy=agent.normalize_policy(run.policy, run))
    return _choose_sandbox(agent, Decision(run=run, compiled=compile_for(agent, run)), cwd)


def decide_again(
    agent: AgentSpec, decision: Decision, failed: Mapping[str, str], cwd: str
) -> Decision:
    """The decision for a program that did not enforce these rows when it was probed. Raises as
    ``decide``."""
    compiled = with_failed(decision.alone or decision.compiled, failed)
    return _choose_sandbox(agent, Decision(run=decision.run, compiled=compiled), cwd)


def _choose_sandbox(agent: AgentSpec, alone: Decision, cwd: str) -> Decision:
    run = alone.run
    if run.hidden and run.replay is None:
        return _hiding(agent, alone, cwd)
    if run.sandbox in ("auto", "require") and run.replay is None:
        return _as_chosen(agent, alone, cwd)
    missing = [part for row in alone.compiled.unenforced for part in row.unenforced]
    if run.sandbox in ("off", "agent") or not run.strict or not missing or not can_contain(agent):
        return alone
    from corral._sessions import sandbox

    boxed = in_sandbox(agent, run, alone.compiled, sandbox.COMPLETE)
    if boxed.unenforced:
        return alone
    if run.replay is not None:
        return msgspec.structs.replace(alone, compiled=boxed)
    try:
        support = sandbox.find_complete(run, cwd)
    except CorralError as error:
        return msgspec.structs.replace(alone, obstacle=error)
    reason = f"{agent.name} alone cannot enforce {', '.join(missing)}"
    return _with_sandbox(agent, alone, support, reason)


def _as_chosen(agent: AgentSpec, alone: Decision, cwd: str) -> Decision:
    """For ``auto`` and ``require``."""
    mode = alone.run.sandbox
    if not can_contain(agent):
        if mode == "require":
            raise ConfigError(f"{agent.title} cannot be started in a sandbox")
        return alone
    from corral._sessions import sandbox

    support = sandbox.choose(alone.run, cwd)
    if support is None:
        return alone
    return _with_sandbox(agent, alone, support, f"sandbox={mode}")


def _hiding(agent: AgentSpec, alone: Decision, cwd: str) -> Decision:
    """For a run that has something to hide: only a complete sandbox hides it from every command."""
    from corral._sessions import sandbox

    mode = alone.run.sandbox
    if mode in ("off", "agent") or not can_contain(agent):
        why = f"sandbox={mode}" if can_contain(agent) else f"{agent.title} cannot be started in one"
        raise ConfigError(
            f"hidden folders need corral's sandbox, and there is none: {why}",
            hint="Leave sandbox out, or set sandbox='require' (--sandbox require).",
        )
    try:
        support = sandbox.find_complete(alone.run, cwd)
    except SandboxFailed as error:
        what = f"hidden folders and scenarios need corral's sandbox; {error.message}"
        raise SandboxFailed(what, hint=error.hint) from error
    return _with_sandbox(agent, alone, support, "it hides folders")


def _enforcing_twin(agent: AgentSpec, run: RunOptions, capability: Capability) -> str | None:
    """The agent that runs the same program, asks for permission and so enforces this part."""
    twin = registry.twin_that_asks(agent.name)
    if twin is None:
        return None
    try:
        report = compile_for(twin, run).report
    except CorralError:
        return None
    held = all(not row.unenforced for row in report if row.capability == capability)
    return twin.name if held else None


def can_contain(agent: AgentSpec) -> bool:
    """Whether the agent, or the commands that it runs, can be started in a sandbox."""
    return not isinstance(agent.transport, InProcess) or agent.transport.runs_commands


def _with_sandbox(agent: AgentSpec, alone: Decision, support: Support, reason: str) -> Decision:
    compiled = in_sandbox(agent, alone.run, alone.compiled, support)
    return Decision(
        run=alone.run,
        compiled=compiled,
        sandbox=support,
        reason=reason,
        alone=alone.compiled,
    )


def in_sandbox(
    agent: AgentSpec, run: RunOptions, compiled: CompiledPolicy, support: Support
) -> CompiledPolicy:
    """A policy that was compiled for the agent alone, for the same run in a sandbox."""
    limits = SandboxLimits(
        is_complete=support.is_complete,
        has_network=run.policy.network == "allow",
        limits_hosts=support.method == "bubblewrap",
    )
    return for_sandbox(agent, compiled, limits)


def check(agent: AgentSpec, decision: Decision) -> None:
    """Raises ``PolicyNotEnforceable`` for what nothing enforces, and ``ConfigError`` where
    ``on_tool_call`` is not available. Warns, once per process, if nothing is limited."""
    run = decision.run
    if run.strict and decision.compiled.unenforced:
        row, obstacle = decision.compiled.unenforced[0], decision.obstacle
        what = f"{agent.name} cannot enforce {row.unenforced[0]}: {row.note}"
        hint = f"Leave {row.capability} to another agent, or set strict=False to run it anyway."
        if obstacle is not None:
            what += f". A sandbox would enforce it, but cannot be used: {obstacle.message}"
            hint = f"{obstacle.hint or ''} strict=False runs it anyway.".strip()
        elif row.capability == "network" and run.policy.shell == "allow":
            hint = (
                "sandbox='needed' (--sandbox needed) enforces it. Without a sandbox the closest"
                " enforceable policy is shell='deny' with network='deny', or leave network unset."
                " strict=False runs it anyway."
            )
        elif twin := _enforcing_twin(agent, run, row.capability):
            hint = f"{twin} enforces it: it asks for permission. strict=False runs it anyway."
        raise PolicyNotEnforceable(what, hint=hint)
    if run.hooked:
        controls = decision.compiled.controls
        if agent.tool_call_hook == "none":
            able = [each.name for each in config.all_agents() if each.tool_call_hook != "none"]
            raise ConfigError(
                f"on_tool_call is not available with {agent.name}:"
                " it does not ask before each of its tool calls",
                hint=f"Use another agent: {', '.join(able)}.",
            )
        if run.strict and controls.unhooked:
            raise PolicyNotEnforceable(
                f"{agent.name} would not show every call to on_tool_call: {controls.unhooked[0]}",
                hint="Deny these calls in the policy, or set strict=False to run it anyway.",
            )
    could_contain = run.policy.is_unlimited and can_contain(agent) and run.replay is None
    # An explicit ``off`` says that the caller knows.
    if could_contain and decision.sandbox is None and decision.run.sandbox not in ("off", "agent"):
        advice = "--sandbox auto (sandbox='auto') limits it to the workspace"
        if decision.run.sandbox == "auto":
            advice = "this machine has no sandbox, see `corral agents doctor`"
        warn_once(advice)


@functools.cache
def warn_once(advice: str) -> None:
    warnings.warn(
        "the policy allows everything, and no sandbox limits what the agent does on this machine:"
        f" {advice}, --sandbox off (sandbox='off') hides this warning",
        stacklevel=2,
    )
