"""A policy in Claude Code's own controls: which tools are offered, allowed or asked about.

Facts that this depends on, each seen in runs of the real program:

- ``--tools`` is a complete list: other tools do not exist, for sub-agents either.
- Commands that only read (``echo``, ``ls``) run without a permission request in every mode,
  unless a rule under ``permissions.ask`` names the tool. Such a rule wins over allow rules.
- ``acceptEdits`` also runs ``touch`` and ``rm``, and a bare ``Write`` writes anywhere on the
  disk. So the mode stays ``default``, and as root nothing has to be bypassed.
- It protects only some of the files that programs obey. So every edit sends us a permission
  request, and ``corral.system.path_guard`` judges its path as for any other agent. The same holds
  for every command if the policy has shell rules.
- Reading inside the working directories needs no permission request. It asks about every other
  path and resolves links first; it never reads ``/proc``.
- A call that no rule allows sends us a permission request, and is not made until we answer.
- If no one can answer, what the policy would ask about is not offered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain

import msgspec

from corral.agents.shared import report_notes
from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, PolicyRow
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, ShellRule, Verdict
from corral.protected_paths import globs
from corral.values import Json

READ = ("Read", "Glob", "Grep", "LSP")
WRITE = ("Edit", "Write", "NotebookEdit")
SHELL = ("Bash", "Monitor")
NETWORK = ("WebFetch", "WebSearch")
HARMLESS = (
    "TodoWrite",
    "TaskCreate",
    "TaskUpdate",
    "TaskList",
    "TaskGet",
    "ReportFindings",
    "ToolSearch",
    "StructuredOutput",
)
ANSWER = ("StructuredOutput",)
"""Not an action: with it the model submits its answer."""
DELEGATE = ("Task", "Agent")
"""A sub-agent has no tool and no permission that the main agent does not have, and asks in the
same way. The model calls it by the second name; the list of tools has the first."""
OTHER = ("Skill",)
QUESTIONS = ("AskUserQuestion",)
"""Asks a person; not offered where no one can answer."""

TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(READ, "read"),
    "Glob": "search",
    "Grep": "search",
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(NETWORK, "fetch"),
    **dict.fromkeys((*HARMLESS, *DELEGATE, *QUESTIONS), "think"),
    **dict.fromkeys(OTHER, "other"),
}
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL,
    "network": NETWORK,
}
SETTINGS_FILE = "settings.json"
_FENCES = tuple(f"Edit({glob})" for glob in globs())
"""Deny rules for protected names, relative to the working directory. They are a second check: every
edit is also judged when it asks. Claude Code applies them to commands as well, so they are left
out if the shell is free."""


FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (
        ("Bash", {"command": "{command}", "description": "Run it"}),
        ("Monitor", {"command": "{command}", "description": "Run it", "timeout_ms": 5000}),
    ),
    "background": (
        (
            "Bash",
            {"command": "{command}", "description": "Run it", "run_in_background": True},
        ),
    ),
    "write": (("Write", {"file_path": "{path}", "content": "{text}"}),),
    "edit": (("Edit", {"file_path": "{path}", "old_string": "{before}", "new_string": "{after}"}),),
    "read": (("Read", {"file_path": "{path}"}),),
    "list": (("Glob", {"pattern": "*", "path": "{path}"}),),
    "find": (("Glob", {"pattern": "{path}/*"}),),
    "search": (("Grep", {"pattern": "{pattern}", "path": "{path}", "output_mode": "content"}),),
    "fetch": (("WebFetch", {"url": "{url}", "prompt": "What is there?"}),),
    "web_search": (("WebSearch", {"query": "{query}"}),),
    "delegate": (
        (
            "Agent",
            {
                "description": "Do it",
                "prompt": "{prompt}",
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
        ),
    ),
    "skill": (("Skill", {"skill": "{skill}"}),),
    "mcp_resource": (("ReadMcpResourceTool", {"server": "{server}", "uri": "{uri}"}),),
}
"""How the model calls the tools."""


class _Grant(msgspec.Struct, frozen=True):
    """What the policy makes of one capability. Its rules and its row of the report are both made
    from this record."""

    verdict: Verdict
    offered: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    """Names that run without a question."""
    asked: tuple[str, ...] = ()
    """Names that ask before each call."""
    notes: tuple[str, ...] = ()


class _Controls(msgspec.Struct, frozen=True):
    """A policy in Claude Code's own terms."""

    grants: dict[Capability, _Grant]
    offered: list[str]
    hidden: list[str]
    allow: list[str]
    rules: dict[str, Json]


def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """Raises ``PolicyError`` for a tool name that Claude Code does not have."""
    check_names(policy, TOOLS, "Claude Code", prefixed("mcp__"), strict=run.strict)
    controls = _controls(policy, run)
    servers = _servers(run, controls)
    if policy.mode == "native":
        note = "the agent's own default: it reads, runs what only reads, and asks for the rest"
        rows = tuple(PolicyRow(capability, "ask", "native", note) for capability in CAPABILITIES)
        return CompiledPolicy(rows, servers=servers, unhooked=(report_notes.UNASKED_BY_DEFAULT,))
    flags = ["--tools", ",".join(controls.offered)]
    if controls.hidden:
        flags += ["--disallowedTools", ",".join(controls.hidden)]
    if controls.allow:
        flags += ["--allowedTools", ",".join(controls.allow)]
    flags += ["--permission-mode", "plan" if policy.mode == "plan" else "manual"]
    return CompiledPolicy(
        _report(policy, run, controls),
        tuple(flags),
        {SETTINGS_FILE: json.dumps({"permissions": controls.rules})},
        servers=servers,
    )


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """The same for claude-agent-acp, which takes the options of Anthropic's SDK as JSON. Its
    permission requests do not say where a path leads, so Claude Code's own restriction keeps its
    tools in the workspace."""
    plain = compile_policy(policy, run)
    return CompiledPolicy(plain.report, settings=_sdk_options(policy, run), unhooked=plain.unhooked)


def _sdk_options(policy: Policy, run: RunOptions) -> dict[str, Json]:
    options: dict[str, Json] = {
        "settingSources": [],
        "strictMcpConfig": True,
        "allowDangerouslySkipPermissions": False,
        "promptSuggestions": False,  # each costs a call of the model, and no user sees it
    }
    if policy.mode == "native":
        return {**options, "settings": {}}
    # Its questions do not come through claude-agent-acp.
    controls = _controls(policy, msgspec.structs.replace(run, has_person=False))
    options |= {
        "tools": [*controls.offered],
        "disallowedTools": [*controls.hidden],
        "allowedTools": [*controls.allow],
    }
    if not policy.is_unlimited:
        options |= {"extraArgs": {"restricted": None}, "additionalDirectories": [*policy.writable]}
    return {**options, "settings": {"permissions": controls.rules}}


def _controls(policy: Policy, run: RunOptions) -> _Controls:
    denied = _denied_names(policy)
    grants: dict[Capability, _Grant] = {
        capability: _tool_grant(policy, run, capability, denied) for capability in _TOOLS_OF
    }
    grants["mcp"] = _mcp_grant(policy, run)
    every = grants.values()
    if policy.allow_tools is not None:
        offered = [name for name in policy.allow_tools if name in TOOLS]
    else:
        offered = [*HARMLESS, *DELEGATE, *chain.from_iterable(grant.offered for grant in every)]
        offered += OTHER if run.inherit != "nothing" else ()
        offered += QUESTIONS if run.has_person else ()
    fences: list[Json] = [] if policy.verdict("shell") == "allow" else [*_FENCES]
    hidden = (*chain.from_iterable(grant.hidden for grant in every), *denied)
    return _Controls(
        grants,
        offered=[name for name in offered if name not in denied],
        hidden=[*dict.fromkeys(hidden)],
        allow=[*chain.from_iterable(grant.free for grant in every)],
        rules={"ask": _asked(grants, run), "deny": fences},
    )


def _asked(grants: dict[Capability, _Grant], run: RunOptions) -> list[Json]:
    """The tools that ask before each call; all of them if ``on_tool_call`` decides about each."""
    asked: list[Json] = [*chain.from_iterable(grant.asked for grant in grants.values())]
    others = (*HARMLESS, *DELEGATE, *OTHER) if run.hooked else ()
    return [*(name for name in others if name not in ANSWER), *asked]


def _denied_names(policy: Policy) -> tuple[str, ...]:
    """The names of ``deny_tools``; a sub-agent has two."""
    denied = policy.deny_tools
    if set(DELEGATE) & set(denied):
        denied = (*denied, *(name for name in DELEGATE if name not in denied))
    return denied


def _effective(
    policy: Policy, run: RunOptions, capability: Capability, *, own: bool = False
) -> Verdict:
    """What the policy says; *ask* is *deny* where no one can answer."""
    verdict = policy.verdict(capability, own=own)
    return "deny" if verdict == "ask" and not run.interactive else verdict


def _tool_grant(
    policy: Policy, run: RunOptions, capability: Capability, denied: tuple[str, ...]
) -> _Grant:
    tools, verdict = _TOOLS_OF[capability], policy.verdict(capability)
    rules = policy.rules if capability == "shell" else ()
    judged = any((rules, run.hooked))  # each call, by us
    if policy.allow_tools is not None:
        tools = tuple(name for name in policy.allow_tools if name in tools)
        verdict = "allow" if tools else "deny"
    elif _effective(policy, run, capability) == "deny" and not _allow_some(rules):
        return _Grant(verdict, hidden=tools)
    offered = tuple(name for name in tools if name not in denied)
    if verdict != "allow" or judged:
        return _Grant(verdict, offered, asked=offered)
    if policy.is_unlimited:
        return _Grant(verdict, offered, free=offered)
    if capability == "write":
        return _Grant(verdict, offered, asked=offered)
    # Reading needs no rule: inside the workspace it does not ask.
    return _Grant(verdict, offered, free=() if capability == "read" else offered)


def _allow_some(rules: tuple[ShellRule, ...]) -> bool:
    return any(rule.verdict == "allow" for rule in rules)


def _mcp_grant(policy: Policy, run: RunOptions) -> _Grant:
    if policy.allow_tools is not None:
        names = tuple(name for name in policy.allow_tools if name.startswith("mcp__"))
        verdict: Verdict = "allow" if names else "deny"
        return _Grant(verdict, asked=names) if run.hooked else _Grant(verdict, free=names)
    found: dict[Verdict, list[str]] = {"allow": [], "ask": [], "deny": []}
    for server in run.mcp_servers:
        own_server = server.name == OWN_SERVER
        verdict = _effective(policy, run, "mcp", own=own_server)
        if verdict == "allow" and run.hooked and not own_server:
            verdict = "ask"
        found[verdict].append(f"mcp__{server.name}")
    own = _effective(policy, run, "mcp", own=True)
    others = _effective(policy, run, "mcp")
    return _Grant(
        policy.verdict("mcp"),
        hidden=tuple(found["deny"]),
        free=tuple(found["allow"]),
        asked=tuple(found["ask"]),
        notes=tuple(report_notes.own_functions(run, own, others)),
    )


def _servers(run: RunOptions, controls: _Controls) -> dict[str, str]:
    """A server whose tools are all denied is not even started."""
    hidden = controls.grants["mcp"].hidden
    return {server.name: "" for server in run.mcp_servers if f"mcp__{server.name}" not in hidden}


def _report(policy: Policy, run: RunOptions, controls: _Controls) -> tuple[PolicyRow, ...]:
    shell = controls.grants["shell"]
    free_shell = shell.verdict == "allow" and "Bash" in shell.offered
    return tuple(
        _row(policy, run, capability, controls.grants[capability], free_shell=free_shell)
        for capability in CAPABILITIES
    )


def _row(
    policy: Policy, run: RunOptions, capability: Capability, grant: _Grant, *, free_shell: bool
) -> PolicyRow:
    verdict = grant.verdict
    enforcement, notes = _enforcement(policy, run, capability, grant)
    if capability == "network" and free_shell and policy.network == "deny" and verdict != "allow":
        enforcement = "impossible"
    if capability == "shell" and policy.shell_rules and verdict != "deny":
        enforcement = "brokered"
    notes += [*_NOTES[capability](policy, verdict, free_shell), *grant.notes]
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _enforcement(
    policy: Policy, run: RunOptions, capability: Capability, grant: _Grant
) -> tuple[Enforcement, list[str]]:
    if policy.allow_tools is not None:
        names = grant.free if capability == "mcp" else grant.offered
        is_asked = capability == "mcp" and not names
        return ("brokered" if is_asked else "native"), [report_notes.listed(names)]
    if grant.verdict == "ask" and run.interactive:
        return "brokered", [report_notes.ASKED]
    if grant.verdict == "ask":
        return "native", [report_notes.ASK_DENIED]
    judged = capability == "write" and bool(grant.asked)
    return ("brokered" if judged else "native"), []


def _read_notes(policy: Policy, verdict: Verdict, free_shell: bool) -> list[str]:
    limited = verdict != "deny" and not policy.is_unlimited
    return report_notes.applying(
        (
            (limited, report_notes.READS_OUTSIDE),
            (verdict != "allow" and free_shell, report_notes.shell_can("read")),
        )
    )


def _write_notes(_policy: Policy, verdict: Verdict, free_shell: bool) -> list[str]:
    return [report_notes.shell_can("write")] if verdict != "allow" and free_shell else []


def _shell_notes(policy: Policy, _verdict: Verdict, free_shell: bool) -> list[str]:
    rules = policy.rules
    denies = any(rule.verdict == "deny" for rule in rules)
    return report_notes.applying(
        (
            (rules, f"{len(rules)} shell rules"),
            (free_shell, "it sees the keys in Claude Code's own environment"),
            (free_shell and denies, report_notes.BYPASSABLE),
        )
    )


def _network_notes(_policy: Policy, _verdict: Verdict, free_shell: bool) -> list[str]:
    return [report_notes.SHELL_REACHES_NETWORK] if free_shell else []


_NOTES: dict[Capability, Callable[[Policy, Verdict, bool], list[str]]] = {
    "read": _read_notes,
    "write": _write_notes,
    "shell": _shell_notes,
    "network": _network_notes,
    "mcp": lambda _policy, _verdict, _free_shell: [],
}
"""(policy, verdict of the capability, whether the shell is free) → further notes of its row."""
