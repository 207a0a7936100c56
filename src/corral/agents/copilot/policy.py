"""A policy in Copilot's own flags.

What shaped this, each seen in runs of the real program (1.0.102):

- Left alone it reads in the workspace, and *runs commands that it takes for reading*
  (``ls``, ``cat``) without a question. So a shell that is not allowed is not offered, and no
  question about a command can be relied on.
- Its rules for paths name single files, not all below a folder: for one prompt it cannot keep
  ``.git`` from being written. As a peer it asks for every write that no rule allows, and the
  paths are judged by ``sessions/permissions.py``.
- A rule that denies beats one that allows; a denied call is told to the model, which
  goes on. A question that somebody refuses ends the turn.
- Its file tools stay in the workspace, the folders of ``--add-dir``, and the system's
  folder for temporary files unless ``--disallow-temp-dir`` is given.
- It looks for paths and addresses in a command and asks for them, redirections too;
  a command that names none (``python3 -c …``) goes wherever it wants.
- Offline it has no web tools at all, and else they reach no address of this machine or its
  own network. A command with an address in it is held to the same rules.
- Sub-agents are offered under an unlimited policy only.
"""

from __future__ import annotations

from corral.agents.shared.tool_names import check_names, server_prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, PolicyRow
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict, parse_rule

READ = ("view", "grep", "glob")
WRITE = ("create", "edit", "apply_patch")
SHELL = ("bash", "read_bash", "write_bash", "stop_bash", "list_bash")
NETWORK = ("web_fetch", "web_search")
OTHER = ("task", "read_agent", "list_agents", "write_agent", "skill")
HARMLESS = (
    "sql",
    "session_store_sql",
    "fetch_copilot_cli_documentation",
    "report_intent",
    "task_complete",
    "exit_plan_mode",
)
TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(READ, "search"),
    "view": "read",
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(NETWORK, "fetch"),
    **dict.fromkeys(OTHER, "other"),
    **dict.fromkeys(HARMLESS, "think"),
}
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL + OTHER,
    "network": NETWORK,
}
_KIND: dict[Capability, str] = {
    "read": "read",
    "write": "write",
    "shell": "shell",
    "network": "url",
}
"""What its rules call a capability."""
UNASKED: dict[Capability, str] = {
    "read": "files of the workspace are read",
    "shell": "commands that it takes for reading are run",
    "mcp": "tools that say that they only read are run",
}
"""What it does without a question, with somebody to ask. The caller's own functions say no such
thing of themselves."""
OFFLINE = "with your own provider Copilot is offline and has no web tools"
IN_WORKSPACE = "in the workspace and the writable folders, except protected names"
NO_PROTECTION = "its rules cannot protect .git and the like; copilot-acp can"
ASKED = "decided by whoever answers; a denied call ends the turn"
_NONE = "none"
"""A tool that there is not: an empty list would be no list."""

FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("bash", {"command": "{command}", "description": "Run it"}),),
    "background": (
        (
            "bash",
            {"command": "{command}", "description": "Run it", "mode": "async", "detach": True},
        ),
    ),
    "write": (("create", {"path": "{path}", "file_text": "{text}"}),),
    "edit": (("edit", {"path": "{path}", "old_str": "{before}", "new_str": "{after}"}),),
    "read": (("view", {"path": "{path}"}),),
    "list": (("view", {"path": "{path}"}),),
    "find": (("glob", {"pattern": "*", "paths": "{path}"}),),
    "search": (("grep", {"pattern": "{pattern}", "paths": "{path}", "output_mode": "content"}),),
    "fetch": (("web_fetch", {"url": "{url}"}),),
    "web_search": (("web_search", {"query": "{query}"}),),
    "delegate": (
        (
            "task",
            {
                "description": "Do it",
                "prompt": "{prompt}",
                "agent_type": "general-purpose",
                "name": "helper",
                "mode": "sync",
            },
        ),
    ),
    "skill": (("skill", {"skill": "{skill}"}),),
    "memory": (("store_memory", {"subject": "notes", "fact": "{text}", "category": "general"}),),
}
"""How the model calls the tools."""


def compile_headless(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For one prompt, with nobody to ask. Raises ``PolicyError`` for a tool name that is
    nearly one of its own."""
    report = tuple(_row(policy, capability, run, asks=False) for capability in CAPABILITIES)
    return CompiledPolicy(report, _flags(policy, run, asks=False))


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For a peer, whose questions come to us."""
    report = tuple(_row(policy, capability, run, asks=True) for capability in CAPABILITIES)
    return CompiledPolicy(report, _flags(policy, run, asks=True))


def verdict_of(
    policy: Policy, capability: Capability, run: RunOptions, *, asks: bool, own: bool = False
) -> Verdict:
    """With nobody to ask, what asks is denied. What it asks about only at times is denied too,
    unless it is said that what cannot be enforced may run (``strict=False``)."""
    verdict = policy.verdict(capability, own=own)
    if verdict == "ask" and not (asks and run.interactive):
        return "deny"
    ruled = capability == "shell" and bool(policy.shell_rules)
    if verdict == "ask" and capability in UNASKED and run.strict and not (own or ruled):
        return "deny"
    return verdict


def _flags(policy: Policy, run: RunOptions, *, asks: bool) -> tuple[str, ...]:
    check_names(policy, TOOLS, "Copilot", server_prefixed(run, "-"), strict=run.strict)
    if policy.mode == "native":
        return ()
    if policy.is_unlimited:
        return ("--allow-all",)
    flags = ["--disallow-temp-dir"]
    if policy.mode == "plan":
        flags += ["--mode", "plan"]
    hidden = [*OTHER, *policy.deny_tools]
    if policy.allow_tools is not None:
        flags += _listed(policy.allow_tools, run, asks=asks)
        hidden = [*policy.deny_tools]
    else:
        for capability in _KIND:
            flags += _rule(policy, capability, run, asks=asks)
            if verdict_of(policy, capability, run, asks=asks) == "deny":
                hidden += (
                    () if capability == "shell" and policy.shell_rules else _TOOLS_OF[capability]
                )
        for server in run.mcp_servers:
            own = server.name == OWN_SERVER
            flags += _verb(server.name, verdict_of(policy, "mcp", run, asks=asks, own=own))
    if not asks:
        flags += [_shell_flag(rule) for rule in policy.shell_rules]
    if hidden:
        flags.append(f"--excluded-tools={','.join(dict.fromkeys(hidden))}")
    return tuple(flags)


def _rule(policy: Policy, capability: Capability, run: RunOptions, *, asks: bool) -> list[str]:
    verdict = verdict_of(policy, capability, run, asks=asks)
    if capability == "read" and verdict == "allow":
        return []
    if capability == "write" and verdict == "allow" and asks:
        return []  # every write comes to us, for its paths
    if capability == "shell" and policy.shell_rules:
        if asks:
            return []  # every command comes to us
        return ["--allow-tool=shell"] if verdict == "allow" else []
    return _verb(_KIND[capability], verdict)


def _verb(what: str, verdict: Verdict) -> list[str]:
    if verdict == "allow":
        return ["--allow-all-urls"] if what == "url" else [f"--allow-tool={what}"]
    return [] if verdict == "ask" else [f"--deny-tool={what}"]


def _listed(names: tuple[str, ...], run: RunOptions, *, asks: bool) -> list[str]:
    """These tools alone are offered, and need no further leave."""
    flags = [f"--available-tools={','.join(names) or _NONE}"]
    for capability, tools in _TOOLS_OF.items():
        if capability == "read" or (asks and capability == "write"):
            continue  # it reads unasked; what it writes comes to us
        if any(name in tools for name in names):
            flags += _verb(_KIND[capability], "allow")
    for server in run.mcp_servers:
        for name in names:
            if name.startswith(f"{server.name}-"):
                flags.append(f"--allow-tool={server.name}({name[len(server.name) + 1 :]})")
    return flags


def _shell_flag(rule: str) -> str:
    """Its rules are of a command and its sub-command, whatever follows; ours are globs."""
    verb, pattern = parse_rule(rule)
    stem = pattern.removesuffix(" *")
    return f"--{verb}-tool=shell({stem}{':*' if stem != pattern else ''})"


def _row(policy: Policy, capability: Capability, run: RunOptions, *, asks: bool) -> PolicyRow:
    if policy.mode == "native":
        return PolicyRow(capability, "ask", "native", "the agent's own default: it reads, and asks")
    verdict, enforcement, notes = _verdict_row(policy, capability, run, asks=asks)
    listed = policy.allow_tools
    free_shell = policy.verdict("shell") == "allow" if listed is None else "bash" in listed
    if capability == "write" and verdict == "allow" and not policy.is_unlimited:
        enforcement = "brokered" if asks else "impossible"
    if capability == "network" and free_shell and policy.network == "deny" and verdict != "allow":
        enforcement = "impossible"
    if capability == "shell" and policy.shell_rules:
        enforcement = "advisory"
    notes += _notes(policy, capability, verdict, asks=asks, free_shell=free_shell)
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _verdict_row(
    policy: Policy, capability: Capability, run: RunOptions, *, asks: bool
) -> tuple[Verdict, Enforcement, list[str]]:
    """The verdict by the list of tools, or by the capability."""
    listed = policy.allow_tools
    if listed is not None:
        chosen = [name for name in listed if name in _TOOLS_OF.get(capability, ())]
        if capability == "mcp":
            chosen = [name for name in listed if name not in TOOLS]
        note = f"allow_tools: {', '.join(chosen)}" if chosen else "allow_tools: not listed"
        return "allow" if chosen else "deny", "native", [note]
    verdict = verdict_of(policy, capability, run, asks=asks)
    if verdict == "ask":
        notes = [ASKED]
        if capability not in UNASKED:
            return verdict, "brokered", notes
        return verdict, "advisory", [*notes, f"{UNASKED[capability]} without a question"]
    if verdict == "deny" and policy.verdict(capability) == "ask":
        why = "nobody to ask" if not (asks and run.interactive) else "it asks about some only"
        return verdict, "native", [f"ask→deny: {why}, so it is not offered"]
    return verdict, "native", []


def _notes(
    policy: Policy, capability: Capability, verdict: Verdict, *, asks: bool, free_shell: bool
) -> list[str]:
    notes: list[str] = []
    if capability == "write" and verdict == "allow" and not policy.is_unlimited:
        notes.append(IN_WORKSPACE if asks else NO_PROTECTION)
    if capability == "network" and verdict != "deny":
        notes.append(OFFLINE)
    if capability == "network" and free_shell:
        notes.append("a permitted shell reaches the network, unless an address stands in its line")
    if capability == "shell" and policy.shell_rules:
        why = "what it takes for reading is not asked about" if asks else "its rules are not globs"
        notes.append(f"{len(policy.shell_rules)} shell rules: {why}")
    if capability == "read" and verdict == "allow":
        notes.append("in the workspace and the writable folders")
    return notes
