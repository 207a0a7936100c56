"""A policy in Copilot's own flags.

Facts that this depends on, each seen in runs of the real program (1.0.102):

- By default it reads in the workspace, and *runs commands that it believes to be read-only*
  (``ls``, ``cat``) without asking. So a shell that is not allowed is not offered, and permission
  requests for commands cannot be relied on.
- Its rules for paths name single files, not all files below a folder: the headless agent cannot
  protect ``.git`` from writing. The persistent agent asks about every write that no rule allows,
  and ``sessions/permissions.py`` judges the paths.
- A deny rule wins over an allow rule, but ``--available-tools`` wins over ``--excluded-tools``. A
  call that a rule denies is reported to the model, which continues. A permission request that is
  denied ends the turn.
- Its file tools stay in the workspace, the folders of ``--add-dir``, and the system's
  folder for temporary files unless ``--disallow-temp-dir`` is given.
- It looks for paths and URLs in a command, in redirections too, and asks about them. A command
  that names none (``python3 -c …``) can go anywhere.
- Offline it has no web tools at all. Otherwise they reach no address of this machine or its
  own network. The same rules apply to a command with a URL.
- Sub-agents are offered under an unlimited policy only.
"""

from __future__ import annotations

from corral.agents.shared import report_notes
from corral.agents.shared.tool_names import check_names, server_prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, PolicyRow
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, ShellRule, Verdict

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
"""The name of a capability in Copilot's rules."""
UNASKED: dict[Capability, str] = {
    "read": "files of the workspace are read",
    "shell": "commands that it believes to be read-only are run",
    "mcp": "tools that declare themselves read-only are run",
}
"""What the persistent agent does without asking. The caller's own functions do not declare
themselves read-only."""
OFFLINE = "with your own provider Copilot is offline and has no web tools"
NO_PROTECTION = "its rules cannot protect .git and the like; copilot-acp can"
ASKED = f"{report_notes.ASKED}; a denied call ends the turn"
_NONE = "none"
"""A tool that does not exist: an empty list would count as no list."""

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
    """For one process per prompt, which cannot ask. Raises ``PolicyError`` for a tool name that is
    nearly one of Copilot's."""
    report = tuple(_row(policy, capability, run, asks=False) for capability in CAPABILITIES)
    flags = _flags(policy, run, asks=False)
    return CompiledPolicy(report, flags, unhooked=report_notes.other_hooks(run))


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For the persistent agent, which asks us."""
    report = tuple(_row(policy, capability, run, asks=True) for capability in CAPABILITIES)
    return CompiledPolicy(report, _flags(policy, run, asks=True))


def verdict_of(
    policy: Policy, capability: Capability, run: RunOptions, *, asks: bool, own: bool = False
) -> Verdict:
    """*ask* is *deny* if no one can answer. It is also *deny* for what Copilot asks about only
    sometimes, unless the caller accepts what cannot be enforced (``strict=False``)."""
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
        flags += [_shell_flag(rule) for rule in policy.rules]
    if hidden:
        flags.append(f"--excluded-tools={','.join(dict.fromkeys(hidden))}")
    return tuple(flags)


def _rule(policy: Policy, capability: Capability, run: RunOptions, *, asks: bool) -> list[str]:
    verdict = verdict_of(policy, capability, run, asks=asks)
    if capability == "read" and verdict == "allow":
        return []
    if capability == "write" and verdict == "allow" and asks:
        return []  # it asks about every write, and we judge the path
    if capability == "shell" and policy.shell_rules:
        if asks:
            return []  # it asks about every command
        return ["--allow-tool=shell"] if verdict == "allow" else []
    return _verb(_KIND[capability], verdict)


def _verb(what: str, verdict: Verdict) -> list[str]:
    if verdict == "allow":
        return ["--allow-all-urls"] if what == "url" else [f"--allow-tool={what}"]
    return [] if verdict == "ask" else [f"--deny-tool={what}"]


def _listed(names: tuple[str, ...], run: RunOptions, *, asks: bool) -> list[str]:
    """Only these tools are offered, and they need no further permission."""
    flags = [f"--available-tools={','.join(names) or _NONE}"]
    for capability, tools in _TOOLS_OF.items():
        if capability == "read" or (asks and capability == "write"):
            continue  # it reads without asking; it asks about every write
        if any(name in tools for name in names):
            flags += _verb(_KIND[capability], "allow")
    for server in run.mcp_servers:
        for name in names:
            if name.startswith(f"{server.name}-"):
                flags.append(f"--allow-tool={server.name}({name[len(server.name) + 1 :]})")
    return flags


def _shell_flag(rule: ShellRule) -> str:
    """Its rules name a command and its sub-command, with any arguments; ours are globs."""
    stem = rule.pattern.removesuffix(" *")
    return f"--{rule.verdict}-tool=shell({stem}{':*' if stem != rule.pattern else ''})"


def _row(policy: Policy, capability: Capability, run: RunOptions, *, asks: bool) -> PolicyRow:
    if policy.mode == "native":
        return PolicyRow(capability, "ask", "native", "the agent's own default: it reads, and asks")
    verdict, enforcement, notes = _verdict_row(policy, capability, run, asks=asks)
    judged = asks or run.hooked  # the hook of on_tool_call judges each call by the policy too
    listed = policy.allow_tools
    free_shell = policy.verdict("shell") == "allow" if listed is None else "bash" in listed
    if capability == "write" and verdict == "allow" and not policy.is_unlimited:
        enforcement = "brokered" if judged else "impossible"
    if capability == "network" and free_shell and policy.network == "deny" and verdict != "allow":
        enforcement = "impossible"
    if capability == "shell" and policy.shell_rules:
        enforcement = "advisory"
    notes += _notes(policy, capability, verdict, judged=judged, free_shell=free_shell)
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
        return "allow" if chosen else "deny", "native", [report_notes.listed(chosen)]
    verdict = verdict_of(policy, capability, run, asks=asks)
    if verdict == "ask":
        notes = [ASKED]
        if capability not in UNASKED:
            return verdict, "brokered", notes
        return verdict, "advisory", [*notes, f"{UNASKED[capability]} without asking"]
    if verdict == "deny" and policy.verdict(capability) == "ask":
        if not (asks and run.interactive):
            return verdict, "native", [report_notes.ASK_DENIED]
        return verdict, "native", [f"ask→deny: it does not always ask; {report_notes.NOT_OFFERED}"]
    return verdict, "native", []


def _notes(
    policy: Policy, capability: Capability, verdict: Verdict, *, judged: bool, free_shell: bool
) -> list[str]:
    notes: list[str] = []
    if capability == "write" and verdict == "allow" and not policy.is_unlimited:
        notes.append(report_notes.WRITES_INSIDE if judged else NO_PROTECTION)
    if capability == "network" and verdict != "deny":
        notes.append(OFFLINE)
    if capability == "network" and free_shell:
        notes.append("a permitted shell reaches the network, unless the command contains a URL")
    if capability == "shell" and policy.shell_rules:
        why = (
            "it does not ask about commands that it believes to be read-only"
            if judged
            else "its rules are not globs"
        )
        notes.append(f"{len(policy.shell_rules)} shell rules: {why}")
    if capability == "read" and verdict == "allow":
        notes.append(report_notes.IN_FOLDERS)
    return notes
