"""The policy of an agent that cannot ask: a tool is offered to the model, or it is not.

So what is not allowed is denied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.agents.shared import report_notes
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
"""An agent's tools, with their kinds."""


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
    """For an agent with a flag that lists all its tools, and another (``nothing``) for none."""

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
    """The verdict that applies, with its note. ``chosen``: the tools of this capability that
    ``allow_tools`` lists."""
    if policy.allow_tools is not None:
        return ("allow" if chosen else "deny"), [report_notes.listed(chosen)]
    verdict = policy.verdict(capability)
    return ("deny", [report_notes.HEADLESS_DENIED]) if verdict == "ask" else (verdict, [])


def policy_rows(policy: Policy, tools: Tools, shell: str) -> tuple[PolicyRow, ...]:
    """The report of an agent whose file tools stay in the workspace, and which has no rules for
    commands, no web tools and no tool servers. ``shell`` is its shell's name."""
    if policy.mode == "native":
        return tuple(
            PolicyRow(each, "allow", "native", report_notes.OWN_DEFAULT) for each in CAPABILITIES
        )
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
        verdict, notes = "deny", [report_notes.NO_SERVERS]
    elif capability == "network" and free_shell:
        denied = policy.network == "deny"
        enforcement = "impossible" if denied else enforcement
        verdict, notes = "deny" if denied else "allow", [report_notes.SHELL_REACHES_NETWORK]
    elif capability == "network":
        verdict, notes = "deny", ["it has no web tools"]
    elif not of_capability:
        verdict, notes = "deny", [*notes, report_notes.NOT_OFFERED]
    elif capability == "shell":
        notes.append("it sees the keys in the agent's own environment")
    elif not policy.is_unlimited:
        notes.append(report_notes.IN_FOLDERS)
        notes += ["a permitted shell goes anywhere"] if free_shell else []
    if capability == "shell" and policy.shell_rules:
        enforcement = "advisory"
        notes.append("it has no rules for single commands")
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))
