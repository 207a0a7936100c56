"""The policy report: one row per capability, with the same words for every agent.

A row has the default of its grant with who enforces it, then the exceptions with theirs::

    shell: deny (brokered) · git status: allow (brokered)
    shell: deny (native) · git status: not offered

The verdicts come from the grants alone, so that they are the same for all agents. Who enforces them
comes from the agent's controls, the very ones that are handed over. A sandbox changes the latter:
it limits what can be reached. It cannot make an agent ask, nor tell one tool, command or file of
the workspace from another, so what the agent does not enforce of these stays as it is.

``compile_for`` is called once per run. ``for_sandbox`` makes the report of the same grants and
controls for a run in the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

import msgspec
from msgspec.structs import replace

from corral._agents.grants import (
    ExceptionKind,
    Grant,
    GrantException,
    Grants,
    compute_grants,
)
from corral._agents.spec import AgentControls, AgentSpec, Enforced
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcer, Verdict

UNHELD: tuple[Enforcer, ...] = ("advisory", "impossible")
BY_PROGRAM: tuple[Enforcer, ...] = ("native", "brokered", "not offered")
"""Who enforces something only as long as the program does what its tested versions do."""
RACES = "not against another process that swaps a link between the check and the write"
BYPASSABLE = "deny rules over a free shell can be bypassed (env, sh -c, aliases)"
SHELL_REACHES_NETWORK = "a permitted shell reaches the network: this agent cannot restrict it"
NO_ANSWER = "ask→deny: no one can answer"


class RowException(msgspec.Struct, frozen=True):
    """Calls that a rule or a list decides otherwise than the row's default."""

    kind: ExceptionKind
    subject: str
    verdict: Verdict
    enforcer: Enforcer


class PolicyRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the policy report."""

    capability: Capability
    verdict: Verdict | Literal["own default"]
    enforcer: Enforcer
    exceptions: tuple[RowException, ...] = ()
    note: str = ""
    races: Literal["closed", "open"] = "closed"
    """Whether a ``write`` stays in the workspace while another process swaps a link in its path."""

    @property
    def is_allowed(self) -> bool:
        """Whether a call that no exception decides is allowed."""
        return self.verdict == "allow" and self.enforcer != "not offered"

    @property
    def is_denied(self) -> bool:
        """Whether no call can be allowed."""
        default = self.verdict == "deny" or self.enforcer == "not offered"
        return default and all(
            each.verdict == "deny" or each.enforcer == "not offered" or each.kind == "host"
            for each in self.exceptions
        )

    @property
    def enforcers(self) -> set[Enforcer]:
        return {self.enforcer, *(each.enforcer for each in self.exceptions)}

    @property
    def unenforced(self) -> tuple[str, ...]:
        """The parts that nothing enforces, and those that the caller allowed by name and that the
        agent cannot let through."""
        parts = [f"{self.capability}={self.verdict}"] if self.enforcer in UNHELD else []
        for each in self.exceptions:
            left_out = each.enforcer == "not offered" and each.verdict == "allow"
            if each.enforcer in UNHELD or (left_out and each.kind in ("rule", "tool")):
                parts.append(f"{self.capability}={each.verdict} for {each.subject}")
        return tuple(parts)

    @property
    def decision(self) -> str:
        """The verdicts with their enforcers, as users read them."""
        parts = [_words("", self.verdict, self.enforcer)]
        for (verdict, enforcer), group in groupby(
            self.exceptions, lambda each: (each.verdict, each.enforcer)
        ):
            parts.append(_words(", ".join(each.subject for each in group), verdict, enforcer))
        return " · ".join(parts)


def _words(subject: str, verdict: str, enforcer: Enforcer) -> str:
    by = "not enforced" if enforcer in UNHELD else enforcer
    words = enforcer if enforcer == "not offered" else f"{verdict} ({by})"
    return f"{subject}: {words}" if subject else words


class CompiledPolicy(msgspec.Struct, frozen=True):
    """The policy of a run, compiled once for its agent."""

    grants: Grants
    controls: AgentControls
    report: tuple[PolicyRow, ...]
    failed: Mapping[str, str] = {}
    """Rows that the agent's program did not enforce when it was probed, with what was seen."""

    @property
    def unenforced(self) -> tuple[PolicyRow, ...]:
        return tuple(row for row in self.report if row.unenforced)


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox of this machine limits. Each limits what can be written."""

    is_complete: bool
    """Also what can be read, and the network."""
    has_network: bool = False
    """The run may use the network."""
    limits_hosts: bool = True
    """It can let commands reach some hosts only."""


def compile_for(agent: AgentSpec, run: RunOptions) -> CompiledPolicy:
    """The policy of a run in the agent's controls, with its report. Raises ``PolicyError`` for a
    policy that the agent cannot have."""
    asks = run.interactive and agent.asks
    # A person who is the agent decides about what the policy asks.
    answered = asks or _is_person(agent)
    grants = compute_grants(run.policy, run, agent.tools, answered=answered)
    controls = agent.controls(grants, run)
    return CompiledPolicy(grants, controls, _report(agent, grants, controls))


def _is_person(agent: AgentSpec) -> bool:
    return "person" in agent.capabilities


def for_sandbox(
    agent: AgentSpec, compiled: CompiledPolicy, limits: SandboxLimits
) -> CompiledPolicy:
    """The same policy for a run in a sandbox."""
    grants, controls = compiled.grants, compiled.controls
    if limits.is_complete and controls.in_sandbox is not None:
        controls = controls.in_sandbox
    own = without_failed(_report(agent, grants, controls), grants, compiled.failed)
    rows = (_in_sandbox(row, grants, limits) for row in own)
    return CompiledPolicy(grants, controls, tuple(rows), compiled.failed)


def with_failed(compiled: CompiledPolicy, failed: Mapping[str, str]) -> CompiledPolicy:
    """The same policy for a program that did not enforce these rows when it was probed."""
    rows = without_failed(compiled.report, compiled.grants, failed)
    return replace(compiled, report=rows, failed=failed)


def without_failed(
    rows: Sequence[PolicyRow], grants: Grants, failed: Mapping[str, str]
) -> tuple[PolicyRow, ...]:
    """The rows in which nothing counts that the program enforces itself and did not enforce when
    it was probed. What is allowed without a limit needs no one who enforces it."""
    return tuple(_without_failed(row, grants, failed) for row in rows)


def _without_failed(row: PolicyRow, grants: Grants, failed: Mapping[str, str]) -> PolicyRow:
    seen = failed.get(row.capability)
    if seen is None and row.capability == "shell" and grants.rules:
        seen = failed.get("shell rules")
    if seen is None:
        return row
    # Reads and writes that are allowed end at the workspace, unless a free shell goes anywhere.
    ends = row.capability in ("read", "write") and not grants.free_shell
    is_limited = row.verdict != "allow" or ends
    by: Enforcer = "impossible" if is_limited and row.enforcer in BY_PROGRAM else row.enforcer
    exceptions = tuple(
        replace(each, enforcer="impossible")
        if each.enforcer in BY_PROGRAM and each.verdict != "allow"
        else each
        for each in row.exceptions
    )
    if (by, exceptions) == (row.enforcer, row.exceptions):
        return row
    note = f"this program did not enforce it when it was probed: {seen}"
    notes = "; ".join(filter(None, (row.note, note)))
    return replace(row, enforcer=by, exceptions=exceptions, note=notes)


def _report(agent: AgentSpec, grants: Grants, controls: AgentControls) -> tuple[PolicyRow, ...]:
    if grants.is_native and controls.own_default:
        note = f"the agent's own default: {controls.own_default}"
        return tuple(PolicyRow(name, "own default", "native", note=note) for name in CAPABILITIES)
    if grants.is_native:
        rows = controls.enforced.items()
        return tuple(PolicyRow(name, "own default", by.default, note=by.note) for name, by in rows)
    return tuple(_row(agent, grants, controls, capability) for capability in CAPABILITIES)


def _row(
    agent: AgentSpec, grants: Grants, controls: AgentControls, capability: Capability
) -> PolicyRow:
    grant, enforced = grants.of(capability), controls.enforced.get(capability, Enforced())
    by = _offered(enforced.default, grant.default)
    row = PolicyRow(
        capability,
        grant.default,
        by,
        tuple(
            RowException(e.kind, e.subject, e.verdict, _enforcer(e, grant, enforced))
            for e in grant.exceptions
        ),
    )
    # A program opens a path by itself, after the path was checked. A free shell can write anywhere.
    opens = capability == "write" and bool(agent.programs) and not grants.free_shell
    races = opens and not row.is_denied and not row.unenforced
    notes = [*_notes(agent, grants, row, enforced), *([RACES] if races else [])]
    return replace(row, note="; ".join(notes), races="open" if races else "closed")


def _enforcer(exception: GrantException, grant: Grant, enforced: Enforced) -> Enforcer:
    kind = exception.kind
    if exception in enforced.left_out:
        return "not offered"
    if kind in enforced.exceptions:
        return enforced.exceptions[kind]
    if kind == "commands":
        return "impossible"  # only a sandbox limits them
    if kind == "host":
        return "advisory" if grant.subjects("commands", "deny") else "not offered"
    return _offered(enforced.default, exception.verdict)


def _offered(enforcer: Enforcer, verdict: Verdict) -> Enforcer:
    """What is not offered is denied by the agent."""
    return "native" if (enforcer, verdict) == ("not offered", "deny") else enforcer


def _notes(agent: AgentSpec, grants: Grants, row: PolicyRow, enforced: Enforced) -> Iterator[str]:
    grant = grants.of(row.capability)
    if grant.would_ask and grant.default == "deny":
        yield NO_ANSWER
    if enforced.note:
        yield enforced.note
    match row.capability:
        case "read" | "write" if grants.free_shell and grant.verdict != "allow":
            yield f"a permitted shell can {row.capability} files anyway"
        case "shell" if not grant.is_denied:
            if grants.free_shell and grant.subjects("rule", "deny"):
                yield BYPASSABLE
            if agent.refused_commands:
                yield f"it refuses by itself: {', '.join(agent.refused_commands)}"
        case "network" if (
            grants.free_shell and grant.verdict != "allow" and "commands" not in enforced.exceptions
        ):
            yield SHELL_REACHES_NETWORK
        case _:
            pass


def _in_sandbox(row: PolicyRow, grants: Grants, limits: SandboxLimits) -> PolicyRow:
    """The row with what the operating system enforces."""
    grant, holds = grants.of(row.capability), not row.unenforced
    kinds: tuple[ExceptionKind, ...] = ()
    verdict = row.verdict
    match row.capability:
        case "read" | "write" | "shell" if row.enforcer == "not offered":
            return row
        case "write" if row.is_denied:
            note = "the workspace cannot be written"
        case "write" if holds or (grant.verdict == "allow" and grants.free_shell):
            note = "only the workspace and the policy's writable folders"
            # With a free shell only .git can be protected, which the sandbox does. What the agent
            # enforces is more than that.
            kinds = ("folder",)
            if not holds:
                kinds = ("folder", "protected")
        case _ if not limits.is_complete:
            return row
        case "network" if grant.subjects("host", "allow"):
            if not limits.limits_hosts:
                return row
            note, verdict = "hosts are reached by a proxy", "deny"
            kinds = ("commands", "host")
        case "network" if not limits.has_network:
            note, verdict = "only the model and the given tool servers can be reached", "deny"
            kinds = ("commands",)
        case "read" if row.is_denied or (row.verdict != "allow" and not holds):
            return row
        case "read":
            note = "the workspace, added folders and the system's programs"
        case "shell" if grant.verdict == "allow" and not row.is_denied and not grants.rules:
            note = "commands see and reach only what is in the sandbox"
        case _:
            return row
    exceptions = tuple(
        replace(each, enforcer="sandbox")
        if each.enforcer != "not offered"
        and (each.kind in kinds or (each.kind == "tool" and each.verdict == "allow"))
        else each
        for each in row.exceptions
    )
    # The sandbox does not know which tools a list names.
    by_list = grants.listed is not None and row.capability != "network" and not row.is_denied
    by: Enforcer = row.enforcer if by_list else "sandbox"
    return PolicyRow(row.capability, verdict, by, exceptions, note)
