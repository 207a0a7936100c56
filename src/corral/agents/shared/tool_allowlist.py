"""The policy of an agent that runs alone: a tool is offered to the model, or it is not.

Nobody can be asked there, so what is not allowed is denied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import CompiledPolicy, PolicyRow
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import (
    CAPABILITIES,
    CAPABILITY_OF,
    Action,
    Capability,
    Enforcement,
    Policy,
    Verdict,
)

Tools = Mapping[str, ToolKind]
"""What an agent has, and what each of them does."""

OWN_DEFAULT = "the agent's own default: it asks for nothing"
NOBODY_TO_ASK = "ask→deny: started for one prompt it has nobody to ask"
NOT_OFFERED = "not offered to the model"
SHELL_REACHES_NETWORK = "a permitted shell reaches the network: this agent cannot restrict it"


def allowed_tools(policy: Policy, tools: Tools) -> list[str]:
    """The tools that may be used."""
    return [
        name
        for name, kind in tools.items()
        if policy.evaluate(Action(tool=name, kind=kind)).verdict == "allow"
    ]


def allowlist_compiler(
    tools: Tools, title: str, *, shell: str, flag: str, nothing: str
) -> Callable[[Policy, RunOptions], CompiledPolicy]:
    """For an agent that is told its tools, and no more, by ``flag``; or ``nothing``."""

    def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
        check_names(policy, tools, title, prefixed("mcp__"), strict=run.strict)
        if policy.mode == "plan":
            raise PolicyError(
                f"{title} has no planning mode", hint="The same rights: Policy.read_only()."
            )
        report = policy_rows(policy, tools, shell)
        if policy.mode == "native":
            return CompiledPolicy(report)
        chosen = ",".join(allowed_tools(policy, tools))
        return CompiledPolicy(report, (flag, chosen) if chosen else (nothing,))

    return compile_policy


def effective_verdict(
    policy: Policy, capability: Capability, chosen: list[str]
) -> tuple[Verdict, list[str]]:
    """What is left of a verdict, and why; of a list of tools, ``chosen`` are of this kind."""
    if policy.allow_tools is not None:
        note = f"allow_tools: {', '.join(chosen)}" if chosen else "allow_tools: not listed"
        return ("allow" if chosen else "deny"), [note]
    verdict = policy.verdict(capability)
    return ("deny", [NOBODY_TO_ASK]) if verdict == "ask" else (verdict, [])


def policy_rows(policy: Policy, tools: Tools, shell: str) -> tuple[PolicyRow, ...]:
    """The report of an agent whose file tools stay in the workspace, and which has no rules for
    commands, no web tools and no tool servers. ``shell`` is its shell's name."""
    if policy.mode == "native":
        return tuple(PolicyRow(each, "allow", "native", OWN_DEFAULT) for each in CAPABILITIES)
    return tuple(_row(policy, each, tools, shell) for each in CAPABILITIES)


def _row(policy: Policy, capability: Capability, tools: Tools, shell: str) -> PolicyRow:
    allowed = allowed_tools(policy, tools)
    free_shell, of_capability = (
        shell in allowed,
        [name for name in allowed if CAPABILITY_OF[tools[name]] == capability],
    )
    verdict, notes = effective_verdict(policy, capability, of_capability)
    enforcement: Enforcement = "native"
    if capability == "mcp":
        verdict, notes = "deny", ["it takes no tool servers"]
    elif capability == "network" and free_shell:
        enforcement = "impossible" if policy.network == "deny" else enforcement
        verdict, notes = "allow", [SHELL_REACHES_NETWORK]
    elif capability == "network":
        verdict, notes = "deny", ["it has no web tools"]
    elif not of_capability:
        verdict, notes = "deny", [*notes, NOT_OFFERED]
    elif capability == "shell":
        notes.append("it sees the keys in the agent's own environment")
    elif not policy.is_unlimited:
        notes.append("in the workspace and the writable folders")
        notes += ["a permitted shell goes anywhere"] if free_shell else []
    if capability == "shell" and policy.shell_rules:
        enforcement = "advisory"
        notes.append("it has no rules for single commands")
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))
