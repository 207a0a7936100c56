"""Grants in Copilot's own flags.

Facts that this depends on, each seen in runs of the real program (1.0.102):

- By default it reads in the workspace, and *runs commands that it believes to be read-only*
  (``ls``, ``cat``) without asking. So a shell that is not allowed is not offered, and permission
  requests for commands cannot be relied on.
- Its rules for paths name single files, not all files below a folder: the headless agent cannot
  protect ``.git`` from writing. The persistent agent asks about every write that no rule allows,
  and ``_sessions/permissions.py`` judges the paths.
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

from collections.abc import Mapping

from msgspec.structs import replace

from corral._agents.grants import ExceptionKind, Grants
from corral._agents.shared.controls import (
    check_names,
    other_hooks,
    server_prefixed,
    tools_by_capability,
)
from corral._agents.spec import Act, AgentControls, Enforced, Form
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcer, Verdict

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
_TOOLS_OF = tools_by_capability(TOOLS, others=True)
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
_UNPROTECTED: Mapping[ExceptionKind, Enforcer] = {"protected": "impossible"}
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


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """For one process per prompt, which cannot ask. Raises ``PolicyError`` for a tool name that is
    nearly one of Copilot's."""
    return replace(_controls(grants, run, asks=False), unhooked=other_hooks(run))


def controls_acp(grants: Grants, run: RunOptions) -> AgentControls:
    """For the persistent agent, which asks us."""
    return _controls(grants, run, asks=True)


def _controls(grants: Grants, run: RunOptions, *, asks: bool) -> AgentControls:
    check_names(grants.tool_lists, TOOLS, "Copilot", server_prefixed(run, "-"), strict=run.strict)
    if grants.is_native:
        return AgentControls(own_default="it reads, and asks")
    verdicts: dict[Capability, Verdict] = {}
    for name in CAPABILITIES:
        verdicts[name] = grants.of(name).verdict
        ruled = name == "shell" and bool(grants.rules)
        # *ask* is *deny* for what Copilot asks about only sometimes, unless the caller accepts
        # what cannot be enforced.
        if verdicts[name] == "ask" and name in UNASKED and not ruled and run.strict:
            verdicts[name] = "deny"
    enforced = _enforced(grants, verdicts, judged=asks or run.hooked)
    if grants.is_unlimited:
        return AgentControls(enforced=enforced, flags=("--allow-all",))
    flags = ["--disallow-temp-dir", *(("--mode", "plan") if grants.is_plan else ())]
    hidden = [*grants.denied]
    if grants.listed is not None:
        flags += _listed(grants.listed, run, asks=asks)
    else:
        hidden = [*OTHER, *hidden]
        for capability, kind in _KIND.items():
            if capability == "shell" and grants.rules:
                # The persistent agent asks about every command.
                is_free = verdicts["shell"] == "allow" and not asks
                flags += ["--allow-tool=shell"] if is_free else []
                continue
            verdict = verdicts[capability]
            # It reads without asking. The persistent agent asks about every write, and we judge
            # the path.
            needs_no_rule = capability == "read" or (capability == "write" and asks)
            flags += [] if verdict == "allow" and needs_no_rule else _verb(kind, verdict)
            hidden += _TOOLS_OF[capability] if verdict == "deny" else ()
        for server in run.mcp_servers:
            own = server.name == OWN_SERVER
            flags += _verb(server.name, grants.own_mcp.verdict if own else verdicts["mcp"])
    for rule in grants.rules if not asks else ():
        # Its rules name a command and its sub-command, with any arguments; ours are globs.
        stem = rule.pattern.removesuffix(" *")
        flags.append(f"--{rule.verdict}-tool=shell({stem}{':*' if stem != rule.pattern else ''})")
    if hidden:
        flags.append(f"--excluded-tools={','.join(dict.fromkeys(hidden))}")
    return AgentControls(enforced=enforced, flags=tuple(flags))


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


def _enforced(
    grants: Grants, verdicts: Mapping[Capability, Verdict], *, judged: bool
) -> dict[Capability, Enforced]:
    """``judged``: it asks us about writes, or the hook of ``on_tool_call`` judges each call by the
    policy."""
    enforced: dict[Capability, Enforced] = {}
    for capability in CAPABILITIES:
        by: Enforcer = "native"
        notes: list[str] = []
        if verdicts[capability] == "ask":
            by = "advisory" if capability in UNASKED else "brokered"
            notes.append("a denied call ends the turn")
        elif grants.of(capability).verdict == "ask":
            by = "not offered"
        if by in ("advisory", "not offered"):
            notes.append(f"{UNASKED[capability]} without asking")
        enforced[capability] = Enforced(by, "; ".join(notes))
    if grants.write.verdict == "allow" and not grants.is_unlimited:
        write = Enforced("brokered") if judged else Enforced("native", NO_PROTECTION, _UNPROTECTED)
        enforced["write"] = write
    if grants.network.verdict != "deny":
        enforced["network"] = Enforced(enforced["network"].default, OFFLINE)
    if grants.rules:
        why = UNASKED["shell"] if judged else "its rules are not globs"
        enforced["shell"] = Enforced("advisory", why)
    own: Enforcer = "brokered" if grants.own_mcp.verdict == "ask" else "native"
    enforced["mcp"] = replace(enforced["mcp"], exceptions={"own": own})
    return enforced
