"""A policy in Claude Code's own controls: what is offered, allowed, asked about.

What shaped this, each seen in runs of the real program:

- ``--tools`` is a closed list: what it leaves out does not exist, for sub-agents either.
- Commands that only read (``echo``, ``ls``) run without a question in every mode, unless a
  rule under ``permissions.ask`` names the tool. Such a rule stands above every allow rule.
- ``acceptEdits`` also runs ``touch`` and ``rm``, and a bare ``Write`` writes anywhere on the
  disk. So the mode stays ``default``, and as root nothing has to be bypassed.
- Of files that programs obey it guards only some by itself. So every edit comes to us as a
  question, and its path is judged by ``corral.system.path_guard`` as for any other agent. So does
  every command where the policy has shell rules.
- Reading inside the working directories needs no question. It asks about every other path, of
  links by where they lead; ``/proc`` it does not read at all.
- What no rule allows comes to us as a question, and what we do not answer is not done.
- With nobody to answer, what the policy would ask about is not offered.
"""

from __future__ import annotations

import json

from corral.agents.shared.tool_allowlist import SHELL_REACHES_NETWORK
from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, PolicyRow
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict
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
DELEGATE = ("Task", "Agent")
"""A sub-agent has no tool and no right that its master has not, and asks as it does. It is
called by the second name, and listed by the first."""
OTHER = ("Skill",)

TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(READ, "read"),
    "Glob": "search",
    "Grep": "search",
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(NETWORK, "fetch"),
    **dict.fromkeys((*HARMLESS, *DELEGATE), "think"),
    **dict.fromkeys(OTHER, "other"),
}
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL,
    "network": NETWORK,
}
OWN_SERVER = "corral"
"""The tool server of the caller's own functions."""
SETTINGS_FILE = "settings.json"
_FENCES = tuple(f"Edit({glob})" for glob in globs())
"""Deny rules for protected names. A second line: every edit is judged by its question too.
Relative to the working directory. Its commands are held against them as well, so that they are
left out where the shell is free."""


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


def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """Raises ``PolicyError`` for a tool name that Claude Code does not have."""
    check_names(policy, TOOLS, "Claude Code", prefixed("mcp__"), strict=run.strict)
    if policy.mode == "native":
        note = "the agent's own default: it reads, runs what only reads, and asks for the rest"
        return CompiledPolicy(
            tuple(PolicyRow(capability, "ask", "native", note) for capability in CAPABILITIES)
        )
    offered, hidden, allow, rules = _controls(policy, run)
    flags = ["--tools", ",".join(offered)]
    if hidden:
        flags += ["--disallowedTools", ",".join(hidden)]
    if allow:
        flags += ["--allowedTools", ",".join(allow)]
    flags += ["--permission-mode", "plan" if policy.mode == "plan" else "manual"]
    report = tuple(_row(policy, run, capability) for capability in CAPABILITIES)
    return CompiledPolicy(report, tuple(flags), {SETTINGS_FILE: json.dumps({"permissions": rules})})


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """The same for claude-agent-acp, which takes the options of Anthropic's SDK as JSON. Its
    permission requests do not say where a path leads, so Claude Code's own restriction keeps its
    tools in the workspace."""
    return CompiledPolicy(compile_policy(policy, run).report, settings=_sdk_options(policy, run))


def _sdk_options(policy: Policy, run: RunOptions) -> dict[str, Json]:
    options: dict[str, Json] = {
        "settingSources": [],
        "strictMcpConfig": True,
        "allowDangerouslySkipPermissions": False,
        "promptSuggestions": False,  # each costs a call of the model, and nobody sees it
    }
    if policy.mode == "native":
        return {**options, "settings": {}}
    offered, hidden, allow, rules = _controls(policy, run)
    options |= {"tools": [*offered], "disallowedTools": [*hidden], "allowedTools": [*allow]}
    if not policy.is_unlimited:
        options |= {"extraArgs": {"restricted": None}, "additionalDirectories": [*policy.writable]}
    return {**options, "settings": {"permissions": rules}}


def _controls(
    policy: Policy, run: RunOptions
) -> tuple[list[str], list[str], list[str], dict[str, Json]]:
    offered, hidden = _offered(policy, run)
    allow, ask = _rules(policy, run, offered)
    fences: list[Json] = [] if policy.verdict("shell") == "allow" else [*_FENCES]
    return offered, hidden, allow, {"ask": [*ask], "deny": fences}


def verdict_of(
    policy: Policy, run: RunOptions, capability: Capability, *, own: bool = False
) -> Verdict:
    """What the policy says, where *ask* with nobody to answer is *deny*."""
    verdict = policy.verdict(capability, own=own)
    return "deny" if verdict == "ask" and not run.interactive else verdict


def _offered(policy: Policy, run: RunOptions) -> tuple[list[str], list[str]]:
    """The tools that there are, and those that are denied by name as well."""
    denied = [*policy.deny_tools]
    if set(DELEGATE) & set(denied):
        denied += [name for name in DELEGATE if name not in denied]
    if policy.allow_tools is not None:
        return [n for n in policy.allow_tools if n in TOOLS and n not in denied], denied
    offered = [*HARMLESS, *DELEGATE]
    hidden: list[str] = []
    for capability, tools in _TOOLS_OF.items():
        is_denied = verdict_of(policy, run, capability) == "deny"
        if capability == "shell" and any(rule.startswith("allow") for rule in policy.shell_rules):
            is_denied = False
        (hidden if is_denied else offered).extend(tools)
    if run.inherit != "nothing":
        offered += OTHER
    for server in run.mcp_servers:
        if verdict_of(policy, run, "mcp", own=server.name == OWN_SERVER) == "deny":
            hidden.append(f"mcp__{server.name}")
    hidden += [name for name in denied if name not in hidden]
    return [name for name in offered if name not in denied], hidden


def _rules(policy: Policy, run: RunOptions, offered: list[str]) -> tuple[list[str], list[str]]:
    """What needs no question, and what needs one whatever else is said."""
    allow: list[str] = []
    ask: list[str] = []
    for capability, tools in _TOOLS_OF.items():
        names = [name for name in tools if name in offered]
        granted = policy.allow_tools is not None or policy.verdict(capability) == "allow"
        judged = policy.shell_rules if capability == "shell" else capability == "write"
        if policy.is_unlimited:
            allow += names
        elif not granted or judged:
            ask += names
        elif capability != "read":
            allow += names
    if policy.allow_tools is not None:
        return [*allow, *(name for name in policy.allow_tools if name.startswith("mcp__"))], ask
    for server in run.mcp_servers:
        verdict = verdict_of(policy, run, "mcp", own=server.name == OWN_SERVER)
        if verdict != "deny":
            (allow if verdict == "allow" else ask).append(f"mcp__{server.name}")
    return allow, ask


def _row(policy: Policy, run: RunOptions, capability: Capability) -> PolicyRow:
    verdict, enforcement, notes = _verdict_row(policy, run, capability)
    free_shell = policy.verdict("shell") == "allow"
    if policy.allow_tools is not None:
        free_shell = "Bash" in policy.allow_tools
    if capability == "network" and free_shell and policy.network == "deny" and verdict != "allow":
        enforcement = "impossible"
    if capability == "shell" and policy.shell_rules and verdict != "deny":
        enforcement = "brokered"
    notes += _notes(policy, capability, verdict, free_shell=free_shell)
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _verdict_row(
    policy: Policy, run: RunOptions, capability: Capability
) -> tuple[Verdict, Enforcement, list[str]]:
    """The verdict by the list of tools, or by the capability."""
    if policy.allow_tools is not None:
        tools = _TOOLS_OF.get(capability, ())
        chosen = [name for name in policy.allow_tools if name in tools]
        if capability == "mcp":
            chosen = [name for name in policy.allow_tools if name.startswith("mcp__")]
        if not chosen:
            is_asked: Enforcement = "brokered" if capability == "mcp" else "native"
            return "deny", is_asked, ["allow_tools: not listed"]
        return "allow", "native", [f"allow_tools: {', '.join(chosen)}"]
    verdict = policy.verdict(capability)
    if verdict == "ask" and run.interactive:
        return verdict, "brokered", ["decided by whoever answers"]
    if verdict == "ask":
        return verdict, "native", ["ask→deny: nobody answers, so it is not offered"]
    writes = capability == "write" and verdict == "allow" and not policy.is_unlimited
    return verdict, "brokered" if writes else "native", []


def _notes(
    policy: Policy, capability: Capability, verdict: Verdict, *, free_shell: bool
) -> list[str]:
    notes: list[str] = []
    if capability == "read" and verdict != "deny" and not policy.is_unlimited:
        notes.append("outside the workspace, reading follows the rule for the shell")
    if capability in ("read", "write") and verdict != "allow" and free_shell:
        notes.append(f"a permitted shell can {capability} files anyway")
    if capability == "network" and free_shell:
        notes.append(SHELL_REACHES_NETWORK)
    if capability == "shell" and policy.shell_rules:
        notes.append(f"{len(policy.shell_rules)} shell rules")
    if capability == "shell" and free_shell:
        notes.append("it sees the keys in Claude Code's own environment")
        if any(rule.startswith("deny") for rule in policy.shell_rules):
            notes.append("deny rules over a free shell can be bypassed (env, sh -c, aliases)")
    return notes
