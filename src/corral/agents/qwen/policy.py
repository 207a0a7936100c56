"""A policy in Qwen Code's own controls, and in what we answer to its questions.

What shaped this, each seen in runs of the real program (0.24.4):

- Left to itself it takes the mode ``auto``, which writes without a question: the mode is always
  set. In ``default`` it reads what it takes for the workspace, and asks for the rest.
- A command that only reads runs unasked, unless a rule under ``permissions.ask`` names its tool.
  So every tool that may be used is named there, reading included: each call comes to us, and its
  paths are judged by ``sessions/broker.py``.
- A rule for ``edit``, ``read_file`` or ``run_shell_command`` is one for all of its kind. So a
  kind is denied as a whole, and then not offered, or every call of it comes to us.
- A sub-agent's questions never come to us, and what it may not do is not told: there is none.
"""

from __future__ import annotations

import json

from corral.agents.shared.tool_allowlist import SHELL_REACHES_NETWORK
from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, PolicyRow
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict
from corral.values import Json

SETTINGS_FILE = "settings.json"
OWN_SERVER = "corral"
"""The tool server of the caller's own functions."""
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": ("read_file", "list_directory", "grep_search", "glob", "zoom_image", "lsp"),
    "write": ("edit", "write_file", "notebook_edit"),
    "shell": ("run_shell_command", "monitor"),
    "network": ("web_fetch", "web_search"),
}
_HARMLESS = ("todo_write", "task_stop", "exit_plan_mode")
_NEVER = (
    "agent",
    "list_agents",
    "send_message",
    "skill",
    "ask_user_question",
    "cron_create",
    "cron_list",
    "cron_delete",
    "loop_wakeup",
    "enter_worktree",
    "exit_worktree",
    "enter_plan_mode",
    "read_mcp_resource",
    "get_goal",
    "update_goal",
    "propose_goal",
    "report_findings",
    "record_artifact",
    "record_source",
    "artifact",
    "workflow",
    "image_gen",
    "exec",
    "create_sub_session",
    "save_memory",
    "display_image",
    "task_create",
    "task_update",
    "task_list",
)
"""They outlive the turn, act without a word to us, or want a person at a terminal."""
TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(_NEVER, "other"),
    **dict.fromkeys(_HARMLESS, "think"),
    **dict.fromkeys(_TOOLS_OF["read"], "read"),
    **dict.fromkeys(("grep_search", "glob"), "search"),
    **dict.fromkeys(_TOOLS_OF["write"], "edit"),
    **dict.fromkeys(_TOOLS_OF["shell"], "execute"),
    **dict.fromkeys(_TOOLS_OF["network"], "fetch"),
}

FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (
        ("run_shell_command", {"command": "{command}", "is_background": False}),
        ("monitor", {"command": "{command}", "description": "Run it"}),
    ),
    "background": (("run_shell_command", {"command": "{command}", "is_background": True}),),
    "write": (("write_file", {"file_path": "{abspath}", "content": "{text}"}),),
    "edit": (
        ("edit", {"file_path": "{abspath}", "old_string": "{before}", "new_string": "{after}"}),
    ),
    "read": (("read_file", {"file_path": "{abspath}"}),),
    "list": (("list_directory", {"path": "{abspath}"}),),
    "find": (("glob", {"pattern": "*", "path": "{abspath}"}),),
    "search": (("grep_search", {"pattern": "{pattern}", "path": "{abspath}"}),),
    "fetch": (("web_fetch", {"url": "{url}", "prompt": "What is there?"}),),
    "web_search": (("web_search", {"query": "{query}"}),),
    "delegate": (
        (
            "agent",
            {"description": "Do it", "prompt": "{prompt}", "subagent_type": "general-purpose"},
        ),
    ),
    "skill": (("skill", {"skill": "{skill}"}),),
    "memory": (("save_memory", {"fact": "{text}", "scope": "project"}),),
    "mcp_resource": (("read_mcp_resource", {"server": "{server}", "uri": "{uri}"}),),
}
"""How the model calls the tools."""


def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """Raises ``PolicyError`` for a tool name that is nearly one of Qwen Code's."""
    check_names(policy, TOOLS, "Qwen Code", prefixed("mcp__"), strict=run.strict)
    rows = tuple(_row(policy, capability, run) for capability in CAPABILITIES)
    mode = ("--approval-mode", "plan" if policy.mode == "plan" else "default")
    deny = [*_NEVER]
    ask: list[Json] = []
    shell = verdict_of(policy, "shell", run) != "deny"
    for capability, tools in _TOOLS_OF.items() if policy.mode != "native" else ():
        hidden = verdict_of(policy, capability, run) == "deny"
        if shell and _verdict(policy, capability, own=False) == "ask":
            # It also denies commands that do what a denied tool does, whatever a rule allows.
            hidden = False
        if hidden:
            deny += tools
        else:
            ask += tools
    ask += [name for name in policy.deny_tools if name not in deny]
    rules: Json = {"permissions": {"ask": ask}}
    flags = (*mode, f"--exclude-tools={','.join(deny)}")
    return CompiledPolicy(rows, flags, {SETTINGS_FILE: json.dumps(rules)})


def verdict_of(
    policy: Policy, capability: Capability, run: RunOptions, *, own: bool = False
) -> Verdict:
    """With nobody to ask, what asks is denied; but rules may still allow single commands."""
    verdict = _verdict(policy, capability, own=own)
    if verdict != "ask" or run.interactive or (capability == "shell" and _allows(policy)):
        return verdict
    return "deny"


def _allows(policy: Policy) -> bool:
    return any(rule.split()[0] == "allow" for rule in policy.shell_rules)


def _verdict(policy: Policy, capability: Capability, *, own: bool) -> Verdict:
    if policy.allow_tools is not None:
        tools = _TOOLS_OF.get(capability, ())
        listed = [
            n for n in policy.allow_tools if n in tools or (n.startswith("mcp__") and not tools)
        ]
        return "allow" if listed else "deny"
    if capability == "shell" and _allows(policy):
        return "ask" if policy.shell != "allow" else "allow"
    return policy.verdict(capability, own=own)


def _row(policy: Policy, capability: Capability, run: RunOptions) -> PolicyRow:
    if policy.mode == "native":
        return PolicyRow(
            capability, "ask", "native", "its mode default: it reads, and asks for the rest"
        )
    verdict, free_shell = verdict_of(policy, capability, run), policy.shell == "allow"
    if policy.allow_tools is not None:
        free_shell = _verdict(policy, "shell", own=False) == "allow"
    enforcement: Enforcement = "native" if verdict == "deny" else "brokered"
    reaches = free_shell and capability == "network" and verdict != "allow"
    if reaches and policy.network == "deny":
        enforcement = "impossible"
    notes = _verdict_notes(policy, capability, verdict)
    if verdict == "ask" and run.interactive:
        notes.append("decided by whoever answers")
    if capability == "shell" and policy.shell_rules:
        notes.append(f"{len(policy.shell_rules)} shell rules: each command comes to us")
    if reaches:
        notes.append(SHELL_REACHES_NETWORK)
    elif free_shell and verdict != "allow" and capability in ("read", "write"):
        notes.append(f"a permitted shell can {capability} files anyway")
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _verdict_notes(policy: Policy, capability: Capability, verdict: Verdict) -> list[str]:
    if policy.allow_tools is not None:
        return ["allow_tools: listed" if verdict == "allow" else "allow_tools: not listed"]
    if capability == "read" and verdict == "allow" and not policy.is_unlimited:
        return ["outside the workspace, reading follows the rule for the shell"]
    if capability == "write" and verdict != "deny" and not policy.is_unlimited:
        return ["in the workspace and the writable folders, except protected names"]
    if verdict == "deny" and _verdict(policy, capability, own=False) == "ask":
        return ["ask→deny: nobody to ask, so it is not offered"]
    return []
