"""What a policy means for one run: the effective verdict of each capability, computed once.

``compute_grants`` is the only place that combines the verdicts of a policy with its lists of tools,
its shell rules, its folders and hosts, and with who can answer a question. An agent's ``controls``
turns the grants into flags, settings and rules of the agent, and says who enforces each part; the
report (``_agents/report.py``) is made from both. No agent reads the policy.

A grant has a *default*: what happens to a call that no list and no rule decides. *Exceptions* are
the rules and lists that decide some calls otherwise:

====================  ============================================  ================================
capability            exceptions                                    verdict
====================  ============================================  ================================
shell                 ``rule``: the shell rules, in their order     of the rule
each                  ``tool``: of ``deny_tools``, ``allow_tools``  deny, allow
write                 ``folder``: the writable folders              that of an edit in the workspace
write                 ``protected``: ``corral._core.protected_paths``     deny
network               ``commands``: if the network is denied and    deny
                      commands may run
network               ``host``: of ``network_hosts``                allow
mcp                   ``own``: the caller's own functions           of ``own_mcp``
====================  ============================================  ================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITY_OF, Capability, Policy, ShellRule, Verdict
from corral.values import McpServer

GrantName = Literal["read", "write", "shell", "network", "mcp", "own_mcp"]
ExceptionKind = Literal["rule", "tool", "folder", "protected", "commands", "host", "own"]
ToolLists: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...]]
"""The tools that alone may be used, if there is such a list; and those that may not be used."""


class GrantException(msgspec.Struct, frozen=True):
    """Calls that a rule or a list decides, and not the default of their grant."""

    kind: ExceptionKind
    subject: str
    verdict: Verdict


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one capability get."""

    default: Verdict
    """*ask* is *deny* if no one can answer."""
    verdict: Verdict
    """What a call gets that no rule decides, of a tool that may be used at all. It differs from
    ``default`` if ``allow_tools`` lists tools of this capability."""
    would_ask: bool = False
    """The policy asks."""
    exceptions: tuple[GrantException, ...] = ()

    @property
    def is_denied(self) -> bool:
        """Whether no call can be allowed, so that the tools need not be offered."""
        return self.verdict == "deny" and not self.subjects("rule", "allow")

    def subjects(self, kind: ExceptionKind, verdict: Verdict) -> tuple[str, ...]:
        return tuple(e.subject for e in self.exceptions if (e.kind, e.verdict) == (kind, verdict))


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is granted, and the facts of the policy that agents need as they are.

    ::

        flags = ("--no-shell",) if grants.shell.is_denied else ()
        tools = grants.offered("shell", ["bash", "python"])
    """

    read: Grant
    write: Grant
    shell: Grant
    network: Grant
    mcp: Grant
    """Of MCP servers other than the caller's own."""
    own_mcp: Grant
    listed: tuple[str, ...] | None = None
    """``allow_tools`` without the names that are also in ``deny_tools``."""
    denied: tuple[str, ...] = ()
    """``deny_tools``."""
    rules: tuple[ShellRule, ...] = ()
    """The shell rules, if they can decide anything."""
    writable: tuple[str, ...] = ()
    free_shell: bool = False
    """Commands that no rule decides are allowed."""
    is_unlimited: bool = False
    is_native: bool = False
    """The agent's own defaults apply: nothing else in this record does."""
    is_plan: bool = False

    @property
    def tool_lists(self) -> ToolLists:
        return self.listed, self.denied

    @property
    def is_limited(self) -> bool:
        return not self.is_unlimited and not self.is_native

    def of(self, capability: Capability) -> Grant:
        grant: Grant = getattr(self, capability)
        return grant

    def of_server(self, name: str) -> Grant:
        """The grant for the tools of an MCP server."""
        return self.own_mcp if name == OWN_SERVER else self.mcp

    def started(self, servers: Iterable[McpServer]) -> tuple[McpServer, ...]:
        """The MCP servers that the agent gets. One whose every tool is denied is a program that
        nothing can use: it is not started. The policy of a later prompt can only be narrower."""
        return tuple(
            s for s in servers if self.is_native or self.of_server(s.name).verdict != "deny"
        )

    def offered(self, capability: Capability, tools: Iterable[str]) -> tuple[str, ...]:
        """Those of an agent's tools for a capability that may be used: in the order of the list of
        tools, if there is one."""
        if self.listed is not None:
            return tuple(name for name in self.listed if name in {*tools})
        if self.of(capability).is_denied:
            return ()
        return tuple(name for name in tools if name not in self.denied)


def compute_grants(
    policy: Policy,
    run: RunOptions,
    tools: Mapping[str, ToolKind],
    *,
    answered: bool,
) -> Grants:
    """The grants of a run. ``tools`` are the agent's tools with their kinds. ``answered``: someone
    can answer what the policy asks."""
    reader = _PolicyReader(policy, run, tools, answered=answered)
    return Grants(
        read=reader.grant("read"),
        write=reader.grant("write"),
        shell=reader.grant("shell"),
        network=reader.grant("network"),
        mcp=reader.grant("mcp"),
        own_mcp=reader.grant("own_mcp"),
        listed=reader.listed,
        denied=tuple(policy.deny_tools),
        rules=reader.rules,
        writable=tuple(policy.writable),
        free_shell=reader.free_shell,
        is_unlimited=policy.is_unlimited,
        is_native=policy.mode == "native",
        is_plan=policy.mode == "plan",
    )


def read_tool_lists(policy: Policy) -> ToolLists:
    """A tool on both lists may not be used."""
    listed, denied = policy.allow_tools, tuple(policy.deny_tools)
    return None if listed is None else tuple(n for n in listed if n not in denied), denied


class _PolicyReader:
    def __init__(
        self,
        policy: Policy,
        run: RunOptions,
        tools: Mapping[str, ToolKind],
        *,
        answered: bool,
    ) -> None:
        self._policy = policy
        self._tools = tools
        self._answered = answered
        self.listed, denied = read_tool_lists(policy)
        listed = self.listed
        by_capability: dict[Capability | None, set[str]] = {}
        for name, kind in tools.items():
            by_capability.setdefault(CAPABILITY_OF[kind], set()).add(name)
        self._all_denied = {
            capability for capability, names in by_capability.items() if names <= {*denied}
        }
        shell = self._verdict("shell")
        runs = any(tools.get(name) == "execute" for name in self.listed or ())
        is_free = shell == "allow" or (shell == "ask" and run.permission_mode == "auto")
        self.free_shell = is_free and (listed is None or runs)
        # Rules decide nothing if each command is denied without them.
        is_native = policy.mode == "native"
        can_run = not is_native and "shell" not in self._all_denied and (listed is None or runs)
        decide = can_run and (shell != "deny" or policy.allows_commands)
        self.rules = policy.rules if decide else ()
        self._may_run = shell != "deny" or bool(self.rules)

    def grant(self, name: GrantName) -> Grant:
        verdict = self._verdict(name)
        return Grant(
            default=verdict if self.listed is None else "deny",
            verdict=verdict,
            would_ask=self.would_ask(name),
            exceptions=tuple(self._exceptions(name, verdict)),
        )

    def would_ask(self, name: GrantName) -> bool:
        """Whether the policy asks, and no list of tools decides instead."""
        by_list = self.listed is not None or _capability(name) in self._all_denied
        return not by_list and self._wanted(name) == "ask"

    def _wanted(self, name: GrantName) -> Verdict:
        return self._policy.verdict(_capability(name), own=name == "own_mcp")

    def _verdict(self, name: GrantName) -> Verdict:
        """What a call gets that no rule decides."""
        if _capability(name) in self._all_denied:
            return "deny"
        if self.listed is not None:
            return "allow" if self._of(name, self.listed) else "deny"
        verdict = self._wanted(name)
        return "deny" if verdict == "ask" and not self._answered else verdict

    def _of(self, name: GrantName, tools: Iterable[str]) -> list[str]:
        """The tools of a capability. One that the agent does not have is that of an MCP server."""
        wanted = _capability(name)
        return [tool for tool in tools if CAPABILITY_OF[self._tools.get(tool, "mcp")] == wanted]

    def _exceptions(self, name: GrantName, verdict: Verdict) -> Iterator[GrantException]:
        """In the order in which they decide."""
        policy = self._policy
        if self.listed is None and (verdict != "deny" or (name == "shell" and self.rules)):
            for tool in self._of(name, policy.deny_tools):
                yield GrantException("tool", tool, "deny")
        if name == "shell":
            for rule in self.rules:
                yield GrantException("rule", rule.pattern, rule.verdict)
        for tool in self._of(name, self.listed or ()):
            yield GrantException("tool", tool, "allow")
        if name == "write" and verdict != "deny" and not policy.is_unlimited:
            yield GrantException("protected", "protected names", "deny")
            for folder in policy.writable:
                yield GrantException("folder", folder, verdict)
        if name == "network" and policy.network == verdict == "deny":
            if self.free_shell or (policy.network_hosts and self._may_run):
                yield GrantException("commands", "commands", "deny")
            for host in policy.network_hosts:
                yield GrantException("host", host, "allow")
        if name == "mcp" and self._verdict("own_mcp") != verdict:
            yield GrantException("own", "your own functions", self._verdict("own_mcp"))


def _capability(name: GrantName) -> Capability:
    return "mcp" if name == "own_mcp" else name
