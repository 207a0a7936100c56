"""Compiles the policy of a run into an agent's own controls, once per run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import msgspec

from corral.agents.shared.at_wire import compile_at_wire
from corral.agents.spec import AgentSpec, CompiledPolicy, PolicyRow
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import CAPABILITY_OF, Capability, Policy, parse_rule

RACES = "not against another process that swaps a link between the check and the write"
"""The note of a ``write`` row whose ``races`` are open."""


def compile_for(agent: AgentSpec, run: RunOptions) -> CompiledPolicy:
    """The policy of a run in the agent's controls.

    The report says where races are open: wherever a program opens a path itself, after the path
    was checked. The file tools of the built-in agent follow no link. A free shell can write
    anywhere, so there races do not matter."""
    policy = _without_denied_names(run.policy, agent.tools)
    compiled = compile_at_wire(agent, policy, run) if run.at_wire else agent.compile(policy, run)
    free = any(row.capability == "shell" and row.verdict == "allow" for row in compiled.report)
    report = compiled.report
    if agent.programs and not free:
        report = tuple(map(_with_race, report))
    if policy.network_hosts and _may_run_commands(policy, run, report):
        report = tuple(map(_with_hosts, report))
    return msgspec.structs.replace(
        compiled,
        report=_shared_report(report),
        limited=not policy.is_unlimited and policy.mode != "native",
        plan=policy.mode == "plan",
        writable=policy.writable,
    )


@functools.lru_cache(maxsize=256)
def _shared_report(report: tuple[PolicyRow, ...]) -> tuple[PolicyRow, ...]:
    """The same report, as one object for all runs that have it."""
    return report


def _without_denied_names(policy: Policy, tools: Mapping[str, ToolKind]) -> Policy:
    """The same policy in a form that every agent compiles alike: ``allow_tools`` has no name that
    is also in ``deny_tools``, and a capability whose tools are all in ``deny_tools`` is denied."""
    denied = {*policy.deny_tools}
    if not denied or policy.mode == "native":
        return policy
    by_capability: dict[Capability, set[str]] = {}
    for name, kind in tools.items():
        if (capability := CAPABILITY_OF[kind]) is not None:
            by_capability.setdefault(capability, set()).add(name)
    changes: dict[str, object] = {
        capability: "deny" for capability, names in by_capability.items() if names <= denied
    }
    if policy.allow_tools is not None:
        changes["allow_tools"] = tuple(name for name in policy.allow_tools if name not in denied)
    return msgspec.structs.replace(policy, **changes)


def _may_run_commands(policy: Policy, run: RunOptions, report: Iterable[PolicyRow]) -> bool:
    verdicts = [row.verdict for row in report if row.capability == "shell"]
    rules = any(parse_rule(rule)[0] == "allow" for rule in policy.shell_rules)
    return rules or "allow" in verdicts or ("ask" in verdicts and run.interactive)


def _with_hosts(row: PolicyRow) -> PolicyRow:
    """No agent limits its commands to some hosts. A sandbox does."""
    if row.capability != "network":
        return row
    note = "commands could reach every host, or none: only a sandbox limits them to some"
    return msgspec.structs.replace(row, enforcement="advisory", note=note)


def _with_race(row: PolicyRow) -> PolicyRow:
    enforced = row.enforcement in ("native", "brokered") and row.reach == "workspace"
    if row.capability != "write" or row.verdict == "deny" or not enforced:
        return row
    note = f"{row.note}; {RACES}" if row.note else RACES
    return msgspec.structs.replace(row, note=note, races="open")
