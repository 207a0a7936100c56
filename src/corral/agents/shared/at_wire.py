"""The policy of an agent that cannot ask, if its tool calls are judged in the model's responses.

The agent itself is given the tools that the policy asks about, and those of shell rules that it
cannot enforce. It never sees a call that was not allowed. What the policy denies without a rule is
denied by the agent's own controls as well.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.agents.shared import report_notes
from corral.agents.spec import AgentSpec, CompiledPolicy, PolicyRow, WireTools, stream_transport
from corral.options import OWN_SERVER, RunOptions
from corral.policy import Capability, Policy, Verdict

AT_WIRE = "each call is judged in the model's response, before the agent sees it"


def asked(policy: Policy, run: RunOptions, wire: WireTools) -> tuple[Capability, ...]:
    """The capabilities about which a person is asked at the wire."""
    if policy.allow_tools is not None or policy.mode == "native" or not run.interactive:
        return ()
    return tuple(
        each
        for each in wire.capabilities(policy)
        if policy.verdict(each) == "ask" and (each != "mcp" or _asks_about_servers(policy, run))
    )


def _asks_about_servers(policy: Policy, run: RunOptions) -> bool:
    return any(
        policy.verdict("mcp", own=server.name == OWN_SERVER) == "ask" for server in run.mcp_servers
    )


def compile_at_wire(agent: AgentSpec, policy: Policy, run: RunOptions) -> CompiledPolicy:
    """The agent's controls for what may be allowed at the wire, and the report of what the policy
    itself allows."""
    wire = stream_transport(agent).wire
    if wire is None:
        raise TypeError(f"{agent.name} cannot be judged at the wire")
    capabilities = asked(policy, run, wire)
    given = agent.compile(_widened(policy, capabilities), run)
    report = agent.compile(policy, replace(run, at_wire=False)).report
    rows = [_row(row, policy, capabilities) for row in report]
    if wire.judges_paths and ("shell" in capabilities or policy.allows_commands):
        rows = list(map(_with_paths, rows))
    return replace(given, report=tuple(rows))


def _with_paths(row: PolicyRow) -> PolicyRow:
    if row.capability not in ("read", "write") or row.verdict != "allow":
        return row
    return PolicyRow(row.capability, "allow", "brokered", AT_WIRE)


def _widened(policy: Policy, capabilities: tuple[Capability, ...]) -> Policy:
    verdicts: dict[str, Verdict] = dict.fromkeys(capabilities, "allow")
    if "mcp" in capabilities and policy.own_mcp == "ask":
        verdicts["own_mcp"] = "allow"
    if policy.allows_commands:
        verdicts["shell"] = "allow"
    return replace(policy, **verdicts)


def _row(row: PolicyRow, policy: Policy, capabilities: tuple[Capability, ...]) -> PolicyRow:
    notes: list[str] = []
    if row.capability == "shell" and policy.shell_rules:
        notes.append(f"{len(policy.shell_rules)} shell rules")
        if policy.verdict("shell") == "allow":
            notes.append(report_notes.BYPASSABLE)
    elif row.capability not in capabilities:
        return row
    verdict = policy.verdict(row.capability)
    if policy.allow_tools is not None:
        verdict = row.verdict
    return PolicyRow(row.capability, verdict, "brokered", "; ".join([AT_WIRE, *notes]))
