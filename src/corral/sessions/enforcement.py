"""What enforces the policy of a run: the agent's own controls, and the sandbox where it is needed.

Theory of operation
-------------------
``decide`` compiles the policy for the agent; the report has a level for each capability. What then
happens depends on the option ``sandbox``:

- ``needed``, the default: if the agent enforces all of it, the machine is not even examined. If a
  row is ``advisory`` or ``impossible``, the policy is compiled again as for a run in a sandbox. If
  that enforces every row and the machine has a complete sandbox, the run gets it.
- ``auto`` and ``require``: the machine's sandbox, whatever the agent enforces.
- ``off`` and ``agent``: no sandbox of corral.

``at_wire`` decides the same for an agent that cannot ask, if its model calls go through corral's
proxy: then its tool calls are judged in the model's responses (``sessions/wire_judge``), before the
agent sees them. ``gains_at_wire`` says whether that would make a difference.

A run with ``strict=False`` accepts rows that nothing enforces, so it needs no sandbox. In a replay
nothing runs that could be limited: the report is that of the sandbox, and there is none.

``check`` refuses what nothing enforces. Both are called before anything is started or spent.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

import msgspec

from corral.agents.spec import (
    AgentSpec,
    CompiledPolicy,
    InProcess,
    PolicyRow,
    StreamTransport,
    asked_at_wire,
    compile_for,
)
from corral.errors import ConfigError, CorralError, PolicyNotEnforceable
from corral.options import RunOptions
from corral.policy import Policy
from corral.system import config

if TYPE_CHECKING:
    from corral.system.sandbox.sandbox import Support


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy of a run is enforced."""

    run: RunOptions
    compiled: CompiledPolicy
    sandbox: Support | None = None
    reason: str = ""
    """Why there is a sandbox."""
    obstacle: CorralError | None = None
    """Why a sandbox that is needed cannot be used."""

    @property
    def unenforced(self) -> tuple[PolicyRow, ...]:
        return unenforced(self.compiled.report)


def unenforced(report: tuple[PolicyRow, ...]) -> tuple[PolicyRow, ...]:
    return tuple(row for row in report if row.enforcement in ("advisory", "impossible"))


def decide(agent: AgentSpec, run: RunOptions, cwd: str) -> Decision:
    """Raises ``SandboxFailed`` if a sandbox is required that the machine does not have, and
    ``ConfigError`` for a folder around which no useful sandbox can be built."""
    if run.sandbox in ("auto", "require") and run.replay is None:
        return _in_sandbox_of_machine(agent, run, cwd)
    alone = Decision(run=run, compiled=compile_for(agent, run))
    missing = alone.unenforced
    if run.sandbox in ("off", "agent") or not run.strict or not missing or not can_contain(agent):
        return alone
    from corral.sessions import sandbox

    boxed = _in_sandbox(agent, run, sandbox.COMPLETE)
    if boxed.unenforced:
        return alone
    named = ", ".join(f"{row.capability}={row.verdict}" for row in missing)
    if run.replay is not None:
        return msgspec.structs.replace(boxed, run=run, sandbox=None)
    try:
        support = sandbox.find_complete(run, cwd)
    except CorralError as error:
        return msgspec.structs.replace(alone, obstacle=error)
    reason = f"{agent.name} alone cannot enforce {named}"
    return _in_sandbox(agent, run, support, reason)


def gains_at_wire(agent: AgentSpec, decision: Decision) -> bool:
    """Whether more could be asked or enforced if the tool calls were judged at the wire."""
    run, transport = decision.run, agent.transport
    if not isinstance(transport, StreamTransport) or transport.wire is None:
        return False
    if run.hooked or run.replay is not None or run.policy.mode == "native" or run.meter is False:
        return False
    if run.policy.shell_rules and any(row.capability == "shell" for row in decision.unenforced):
        return True
    return run.interactive and bool(asked_at_wire(transport.wire, run))


def at_wire(agent: AgentSpec, run: RunOptions, cwd: str) -> Decision:
    """As ``decide``, for a run whose tool calls are judged at the wire."""
    return decide(agent, msgspec.structs.replace(run, at_wire=True), cwd)


def can_contain(agent: AgentSpec) -> bool:
    """Whether the agent, or the commands that it runs, can be started in a sandbox."""
    return not isinstance(agent.transport, InProcess) or agent.transport.runs_commands


def _in_sandbox_of_machine(agent: AgentSpec, run: RunOptions, cwd: str) -> Decision:
    from corral.sessions import sandbox

    if not can_contain(agent):
        if run.sandbox == "require":
            raise ConfigError(f"{agent.title} cannot be started in a sandbox")
        return Decision(run=run, compiled=compile_for(agent, run))
    support = sandbox.choose(run, cwd)
    if support is None:
        return Decision(run=run, compiled=compile_for(agent, run))
    return _in_sandbox(agent, run, support, f"sandbox={run.sandbox}")


def _in_sandbox(agent: AgentSpec, run: RunOptions, support: Support, reason: str = "") -> Decision:
    from corral.sessions import sandbox

    run = msgspec.structs.replace(run, in_sandbox=support.is_complete)
    compiled = compile_for(agent, run)
    report = sandbox.raise_levels(compiled.report, run, support)
    compiled = msgspec.structs.replace(compiled, report=report)
    return Decision(run=run, compiled=compiled, sandbox=support, reason=reason)


def check(agent: AgentSpec, decision: Decision) -> None:
    """Raises ``PolicyNotEnforceable`` for what nothing enforces, and ``ConfigError`` where
    ``on_tool_call`` is not available. Warns, once per process, if nothing is limited."""
    run = decision.run
    if run.strict and decision.unenforced:
        raise _not_enforceable(agent, decision, decision.unenforced[0])
    if run.hooked:
        _check_hooked(agent, run, decision.compiled)
    if run.policy.is_unlimited and can_contain(agent) and run.replay is None:
        _warn_of_no_limits(decision)


def _not_enforceable(agent: AgentSpec, decision: Decision, row: PolicyRow) -> PolicyNotEnforceable:
    what = f"{agent.name} cannot enforce {row.capability}={row.verdict}: {row.note}"
    obstacle = decision.obstacle
    if obstacle is None:
        return PolicyNotEnforceable(what, hint=_hint(decision.run.policy, row))
    return PolicyNotEnforceable(
        f"{what}. A sandbox would enforce it, but cannot be used: {obstacle.message}",
        hint=f"{obstacle.hint or ''} strict=False runs it anyway.".strip(),
    )


def _hint(policy: Policy, row: PolicyRow) -> str:
    if row.capability == "network" and policy.shell == "allow":
        return (
            "sandbox='needed' (--sandbox needed) enforces it. Without a sandbox the closest"
            " enforceable policy is shell='deny' with network='deny', or leave network unset."
            " strict=False runs it anyway."
        )
    return f"Leave {row.capability} to another agent, or set strict=False to run it anyway."


def _check_hooked(agent: AgentSpec, run: RunOptions, compiled: CompiledPolicy) -> None:
    """Raises where ``on_tool_call`` would not see every call."""
    if agent.tool_call_hook == "none":
        able = [each.name for each in config.all_agents() if each.tool_call_hook != "none"]
        raise ConfigError(
            f"on_tool_call is not available with {agent.name}:"
            " it does not ask before each of its tool calls",
            hint=f"Use another agent: {', '.join(able)}.",
        )
    if run.strict and compiled.unhooked:
        raise PolicyNotEnforceable(
            f"{agent.name} would not show every call to on_tool_call: {compiled.unhooked[0]}",
            hint="Deny these calls in the policy, or set strict=False to run it anyway.",
        )


def _warn_of_no_limits(decision: Decision) -> None:
    """An explicit ``off`` says that the caller knows."""
    if decision.sandbox is None and decision.run.sandbox not in ("off", "agent"):
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
