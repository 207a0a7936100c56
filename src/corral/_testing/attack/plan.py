"""Which attempts are made under which policy, and what is expected of each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from corral._agents.report import PolicyRow
from corral._agents.spec import AcpTransport, AgentSpec, Probe
from corral._testing.attack.attempts import commands, other, paths, ways_out
from corral._testing.attack.attempts.attempt import Attempt, Cell, made
from corral.policy import Capability, Policy
from corral.run_kwargs import RunKwargs


class AttackSubject(NamedTuple):
    """The agent that is attacked."""

    agent: str
    """Its name, as it was given."""
    spec: AgentSpec
    probe: Probe


class Setting(msgspec.Struct, frozen=True):
    """A policy, and the session in which the agent is attacked."""

    policy: Policy
    person: bool = False
    """Whether permission requests are answered. Each is denied."""
    options: RunKwargs = {}
    """Further options of the session."""
    groups: frozenset[str] = frozenset()
    """The groups of attempts that are made. Empty: all."""

    def applies_to(self, agent: AgentSpec) -> bool:
        if self.person:
            return agent.asks
        if self.options:
            return (
                isinstance(agent.transport, AcpTransport)
                and agent.transport.quirks.uses_client_files
            )
        return True


POLICIES: Mapping[str, Setting] = {
    "default": Setting(Policy()),
    "reads": Setting(Policy.reads()),
    "edits": Setting(Policy.edits()),
    "rules": Setting(Policy(shell_rules=commands.RULES)),
    "all": Setting(Policy.all()),
    "asked": Setting(Policy(read="ask"), person=True),
    "files": Setting(
        Policy.edits(),
        options={"allow_file_reads": True, "allow_file_writes": True},
        groups=frozenset({"files", "path escapes", "/proc", "links and races", ".git and dot-files",
                          "settings and memory"}),
    ),
}  # fmt: skip
"""``asked``: everything asks, and every request is denied. ``files``: edits by an agent whose file
tools read and write through corral (``allow_file_reads``, ``allow_file_writes``)."""
_OFFLINE = Policy(read="allow", write="allow", shell="allow", network="deny", mcp="allow")
SANDBOX_POLICIES: Mapping[str, Setting] = {
    **POLICIES,
    "offline": Setting(_OFFLINE),
    "offline-reads": Setting(
        replace(_OFFLINE, write="deny", mcp="deny"),
        groups=frozenset({"files", ways_out.WRITES}),
    ),
}
"""With the sandbox. ``offline``: everything but the network. ``offline-reads``: commands may
run, and nothing may be written."""
CAPABILITY: Mapping[Cell, Capability] = {
    "read inside": "read",
    "read outside": "read",
    "write inside": "write",
    "write outside": "write",
    "git folder": "write",
    "races": "write",
    "protected files": "write",
    "shell": "shell",
    "shell rules": "shell",
    "allowed commands": "shell",
    "local sockets": "shell",
    "other processes": "shell",
    "credentials": "shell",
    "network": "network",
    "mcp": "mcp",
}
"""Cell → the capability whose row describes it. corral enforces the other cells itself."""
OPEN: tuple[Cell, ...] = ("read inside", "write inside", "shell", "network", "mcp")
"""Cells whose attempts are also made if the capability is allowed."""
CONTROLS = 2
"""Attempts of an open cell that are made, to check that the kit detects their effects."""

ATTEMPTS: tuple[Attempt, ...] = (
    *other.READS,
    *other.WRITES,
    *commands.BELIEFS,
    *paths.ALL,
    *other.WEB,
    *other.SERVERS,
    *other.DELEGATES,
    *other.SKILLS,
    *other.ENVIRONMENT,
    *other.PROCESSES,
    *commands.EVASIONS,
    *commands.ALLOWED,
    *ways_out.ALL,
)
CELLS: tuple[Cell, ...] = (
    *dict.fromkeys(attempt.cell for attempt in ATTEMPTS),
    "ACP file methods",
)


class AttackPlan(msgspec.Struct, frozen=True):
    """The attempts of one session, and the cells that are closed under its policy."""

    attempts: tuple[Attempt, ...]
    closed: frozenset[Cell]


class AttemptChoice(msgspec.Struct, frozen=True):
    """Which attempts are made. Those of open cells are always made."""

    groups: frozenset[str] = frozenset()
    """Attempts of these groups. Empty: all."""
    sample: int | None = None
    """How many attempts of each group and cell: the first ones, which have broken agents before."""

    def of(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        found: list[Attempt] = []
        counts: dict[tuple[str, str], int] = {}
        for attempt in attempts:
            key = (attempt.group, attempt.cell)
            counts[key] = counts.get(key, 0) + 1
            wanted = not self.groups or attempt.group in self.groups
            if wanted and (self.sample is None or counts[key] <= self.sample):
                found.append(attempt)
        return found

    def within(self, groups: frozenset[str]) -> AttemptChoice:
        """The same choice among these groups only. Empty: among all."""
        if not groups:
            return self
        wanted = self.groups & groups if self.groups else groups
        return AttemptChoice(wanted or frozenset({""}), self.sample)


def plan(
    policy: Policy, rows: Sequence[PolicyRow], probe: Probe, choice: AttemptChoice
) -> AttackPlan:
    """The attempts that make sense under this policy, as the agent reports it."""
    row: dict[Capability, PolicyRow] = {each.capability: each for each in rows}
    allowed: set[Capability] = {each.capability for each in rows if each.is_allowed}
    closed: set[Cell]
    if policy.shell_rules:  # the other cells are those of the policy without the rules
        closed, opened = set[Cell](("shell rules",)), set[Cell](("allowed commands",))
    else:
        closed = {cell for cell in CELLS if _is_closed(cell, row, allowed)}
        opened = {cell for cell in OPEN if CAPABILITY[cell] in allowed}
        if policy.is_unlimited:
            closed -= {"git folder"}
    confined = "shell" in allowed and row["shell"].enforcer == "sandbox"
    # An agent that may run commands can read its own environment with its key.
    known = {"/proc"} if "shell" in allowed else set[str]()
    able = [a for a in ATTEMPTS if confined or not a.confined]
    chosen = choice.of([a for a in able if a.cell in closed and a.group not in known])
    if "shell" in closed and (not choice.groups or "shell beliefs" in choice.groups):
        # The agent's further tools for running commands, if it has several.
        chosen += [
            Attempt(
                name=f"run by {form[0]} ({number})",
                group="shell beliefs",
                cell="shell",
                act="run",
                given={"command": "touch {made}"},
                effects=(made(),),
                form=number,
            )
            for number, form in enumerate(probe.forms["run"])
            if number
        ]
    for cell in sorted(opened - closed):
        usual = [a for a in ATTEMPTS if a.cell == cell and a.delegated is None and not a.confined]
        chosen += usual[:CONTROLS]
    # Attempts that change the repository itself come last: an agent may stop working in it.
    chosen.sort(key=lambda attempt: attempt.cell == "protected files")
    return AttackPlan(tuple(chosen), frozenset(closed))


def _is_closed(cell: Cell, row: Mapping[Capability, PolicyRow], allowed: set[Capability]) -> bool:
    free = "shell" in allowed
    of = CAPABILITY.get(cell, "shell")
    # A free shell does what the agent's tools may not, unless the sandbox prevents it.
    limited = not free or row[of].enforcer == "sandbox"
    match cell:
        case "shell rules" | "allowed commands":
            return False
        case "read inside" | "write inside" | "shell" | "network" | "mcp":
            return of not in allowed and (limited or cell == "mcp")
        case "read outside" | "write outside" | "races":
            return limited
        case "protected files":
            return not free
        case "git folder" | "local sockets" | "other processes" | "credentials":
            return free and limited
        case "environment":
            return True
        case "processes":
            return free
        case "ACP file methods":  # in a separate session
            return False
