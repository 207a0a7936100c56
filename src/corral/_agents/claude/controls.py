"""Grants in Claude Code's own controls: which tools are offered, allowed or asked about.

Facts that this depends on, each seen in runs of the real program:

- ``--tools`` is a complete list: other tools do not exist, for sub-agents either.
- Commands that only read (``echo``, ``ls``) run without a permission request in every mode,
  unless a rule under ``permissions.ask`` names the tool. Such a rule wins over allow rules.
- ``acceptEdits`` also runs ``touch`` and ``rm``, and a bare ``Write`` writes anywhere on the
  disk. So the mode stays ``default``, and as root nothing has to be bypassed.
- It protects only some of the files that programs obey. So every edit sends us a permission
  request, and ``corral._system.path_guard`` judges its path as for any other agent. The same holds
  for every command if the policy has shell rules.
- Reading inside the working directories needs no permission request. It asks about every other
  path and resolves links first; it never reads ``/proc``.
- A call that no rule allows sends us a permission request, and is not made until we answer.
- If no one can answer, what the policy would ask about is not offered.
"""

from __future__ import annotations

import json

import msgspec
from msgspec.structs import replace

from corral._agents.grants import Grants
from corral._agents.shared.controls import (
    READS_OUTSIDE,
    UNASKED_BY_DEFAULT,
    check_names,
    prefixed,
    tools_by_capability,
)
from corral._agents.spec import Act, AgentControls, Enforced, Form
from corral._core.protected_paths import globs
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import Capability, Enforcer
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
_TOOLS_OF = tools_by_capability(TOOLS)
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


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """Raises ``PolicyError`` for a tool name that Claude Code does not have."""
    tools = _offer_tools(grants, run, questions=run.has_person)
    if grants.is_native:
        return _NATIVE
    flags = ["--tools", ",".join(tools.offered)]
    if tools.hidden:
        flags += ["--disallowedTools", ",".join(tools.hidden)]
    if tools.free:
        flags += ["--allowedTools", ",".join(tools.free)]
    flags += ["--permission-mode", "plan" if grants.is_plan else "manual"]
    return AgentControls(
        enforced=tools.enforced,
        flags=tuple(flags),
        files={SETTINGS_FILE: json.dumps({"permissions": tools.rules})},
    )


def controls_acp(grants: Grants, run: RunOptions) -> AgentControls:
    """The same for claude-agent-acp, which takes the options of Anthropic's SDK as JSON. Its
    permission requests do not say where a path leads, so Claude Code's own restriction keeps its
    tools in the workspace."""
    # Its questions do not come through claude-agent-acp.
    tools = _offer_tools(grants, run, questions=False)
    options: dict[str, Json] = {
        "settingSources": [],
        "strictMcpConfig": True,
        "allowDangerouslySkipPermissions": False,
        "promptSuggestions": False,  # each costs a call of the model, and no user sees it
    }
    if grants.is_native:
        return replace(_NATIVE, settings={**options, "settings": {}})
    options |= {
        "tools": [*tools.offered],
        "disallowedTools": [*tools.hidden],
        "allowedTools": [*tools.free],
        "settings": {"permissions": tools.rules},
    }
    if not grants.is_unlimited:
        options |= {"extraArgs": {"restricted": None}, "additionalDirectories": [*grants.writable]}
    return AgentControls(enforced=tools.enforced, settings=options)


_NATIVE = AgentControls(
    own_default="it reads, runs what only reads, and asks for the rest",
    unhooked=(UNASKED_BY_DEFAULT,),
)


class _OfferedTools(msgspec.Struct, kw_only=True):
    """Grants in Claude Code's own terms."""

    offered: list[str]
    hidden: list[str] = []
    free: list[str] = []
    """Names that run without a question."""
    asked: list[Json] = []
    """Names that ask before each call."""
    rules: dict[str, Json] = {}
    enforced: dict[Capability, Enforced] = {}


def _offer_tools(grants: Grants, run: RunOptions, *, questions: bool) -> _OfferedTools:
    check_names(grants.tool_lists, TOOLS, "Claude Code", prefixed("mcp__"), strict=run.strict)
    denied = grants.denied
    if set(DELEGATE) & set(denied):  # a sub-agent has two names
        denied = (*denied, *(name for name in DELEGATE if name not in denied))
    listed = grants.listed
    offered = (*HARMLESS, *DELEGATE) if listed is None else (n for n in listed if n in TOOLS)
    tools = _OfferedTools(offered=[*offered])
    if run.hooked:
        others = (*HARMLESS, *DELEGATE, *OTHER)
        tools.asked = [name for name in others if name not in ANSWER]
    for capability, names in _TOOLS_OF.items():
        _add_capability(tools, grants, run, capability, names)
    # MCP servers. Calls of tools that are not listed ask, and are denied when they do.
    unasked = tools.asked if run.hooked else tools.free
    unasked.extend(name for name in listed or () if name.startswith("mcp__"))
    for server in run.mcp_servers if listed is None else ():
        verdict, name = grants.of_server(server.name).verdict, f"mcp__{server.name}"
        asks = verdict == "ask" or (run.hooked and server.name != OWN_SERVER)
        kind = tools.hidden if verdict == "deny" else tools.asked if asks else tools.free
        kind.append(name)
    by: Enforcer = "native"
    if listed is not None or grants.mcp.verdict == "ask":
        by = "brokered"
    own: Enforcer = "brokered" if grants.own_mcp.verdict == "ask" else "native"
    tools.enforced["mcp"] = Enforced(by, exceptions={"tool": "native", "own": own})
    if listed is None:
        tools.offered += OTHER if run.inherit != "nothing" else ()
        tools.offered += QUESTIONS if questions else ()
    tools.offered = [name for name in tools.offered if name not in denied]
    tools.hidden = [*dict.fromkeys((*tools.hidden, *denied))]
    fences: list[Json] = [] if grants.shell.default == "allow" else [*_FENCES]
    tools.rules = {"ask": tools.asked, "deny": fences}
    return tools


def _add_capability(
    tools: _OfferedTools,
    grants: Grants,
    run: RunOptions,
    capability: Capability,
    names: tuple[str, ...],
) -> None:
    grant, offered = grants.of(capability), grants.offered(capability, names)
    if grants.listed is None:
        tools.offered += offered
        tools.hidden += names if grant.is_denied else ()
    judged = capability == "write" or (capability == "shell" and bool(grants.rules))
    asks = grant.verdict != "allow" or (judged and not grants.is_unlimited) or run.hooked
    if asks:
        tools.asked += offered
    elif capability != "read" or grants.is_unlimited:
        # Reading needs no rule: inside the workspace it does not ask.
        tools.free += offered
    note = ""
    if capability == "read" and grants.is_limited and not grant.is_denied:
        note = READS_OUTSIDE
    elif capability == "shell" and grants.free_shell:
        note = "it sees the keys in Claude Code's own environment"
    by = Enforced("brokered" if asks and offered else "native", note, {"tool": "native"})
    tools.enforced[capability] = by
