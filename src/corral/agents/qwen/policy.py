"""A policy in Qwen Code's own controls, and in our answers to its permission requests.

Facts that this depends on, each seen in runs of the real program (0.24.4):

- Its own default is the mode ``auto``, which writes without asking: so the mode is always set. In
  ``default`` it reads what it believes to be the workspace, and asks about the rest.
- A command that only reads runs without asking, unless a rule under ``permissions.ask`` names its
  tool. So every tool that may be used is named there, reading included: it asks us about each
  call, and ``sessions/permissions.py`` judges the paths.
- A rule for ``edit``, ``read_file`` or ``run_shell_command`` applies to all tools of its kind. So
  a kind is either denied completely, and then not offered, or it asks us about every call.
- The permission requests of a sub-agent do not reach us, and its denials are not reported: so
  there are no sub-agents.
"""

from __future__ import annotations

import json

from corral.agents.shared import report_notes
from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, PolicyRow
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict
from corral.values import Json

SETTINGS_FILE = "settings.json"
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
"""They outlive the turn, act without reporting it, or need a person at a terminal."""
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
    verdicts: dict[Capability, Verdict] = {c: _effective(policy, c, run) for c in CAPABILITIES}
    deny = [*_NEVER]
    ask: list[Json] = []
    for capability, tools in _TOOLS_OF.items() if policy.mode != "native" else ():
        # It also denies commands that do what a denied tool does, whatever a rule allows.
        needed = verdicts["shell"] != "deny" and _verdict(policy, capability) == "ask"
        if verdicts[capability] == "deny" and not needed:
            deny += tools
        else:
            ask += tools
    ask += [name for name in policy.deny_tools if name not in deny]
    ask += _HARMLESS if run.hooked else ()
    rules: Json = {"permissions": {"ask": ask}}
    mode = "plan" if policy.mode == "plan" else "default"
    return CompiledPolicy(
        _report(policy, run, verdicts),
        ("--approval-mode", mode, f"--exclude-tools={','.join(deny)}"),
        {SETTINGS_FILE: json.dumps(rules)},
        servers=_servers(policy, run, verdicts["mcp"]),
        unhooked=(report_notes.UNASKED_BY_DEFAULT,) if policy.mode == "native" else (),
    )


def _effective(
    policy: Policy, capability: Capability, run: RunOptions, *, own: bool = False
) -> Verdict:
    """*ask* is *deny* where no one can answer; but rules may still allow single commands."""
    verdict = _verdict(policy, capability, own=own)
    if verdict != "ask" or run.interactive or (capability == "shell" and policy.allows_commands):
        return verdict
    return "deny"


def _verdict(policy: Policy, capability: Capability, *, own: bool = False) -> Verdict:
    if policy.allow_tools is not None:
        return "allow" if _listed(policy, capability) else "deny"
    if capability == "shell" and policy.allows_commands:
        return "ask" if policy.shell != "allow" else "allow"
    return policy.verdict(capability, own=own)


def _listed(policy: Policy, capability: Capability) -> list[str]:
    """The tools of this capability in ``allow_tools``."""
    tools, names = _TOOLS_OF.get(capability), policy.allow_tools or ()
    return [n for n in names if (n.startswith("mcp__") if tools is None else n in tools)]


def _servers(policy: Policy, run: RunOptions, others: Verdict) -> dict[str, str]:
    """A server whose tools are all denied is not even started. ``others``: the verdict for servers
    that are not the caller's own."""
    own = _effective(policy, "mcp", run, own=True)
    started = {True: own, False: others}
    return {
        server.name: ""
        for server in run.mcp_servers
        if policy.allow_tools is not None or started[server.name == OWN_SERVER] != "deny"
    }


def _report(
    policy: Policy, run: RunOptions, verdicts: dict[Capability, Verdict]
) -> tuple[PolicyRow, ...]:
    if policy.mode == "native":
        note = "its mode default: it reads, and asks for the rest"
        return tuple(PolicyRow(each, "ask", "native", note) for each in CAPABILITIES)
    return tuple(_row(policy, run, capability, verdicts[capability]) for capability in CAPABILITIES)


def _row(policy: Policy, run: RunOptions, capability: Capability, verdict: Verdict) -> PolicyRow:
    free_shell = policy.shell == "allow"
    if policy.allow_tools is not None:
        free_shell = _verdict(policy, "shell") == "allow"
    reached = free_shell and verdict != "allow"
    enforcement: Enforcement = "native" if verdict == "deny" else "brokered"
    if capability == "network" and reached and policy.network == "deny":
        enforcement = "impossible"
    rules = len(policy.shell_rules) if capability == "shell" else 0
    notes = _verdict_notes(policy, run, capability, verdict) + report_notes.applying(
        (
            (rules, f"{rules} shell rules: each command asks for permission"),
            (reached and capability == "network", report_notes.SHELL_REACHES_NETWORK),
            (reached and capability in ("read", "write"), report_notes.shell_can(capability)),
        )
    )
    if capability == "mcp":
        own = _effective(policy, "mcp", run, own=True)
        notes += report_notes.own_functions(run, own, verdict)
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _verdict_notes(
    policy: Policy, run: RunOptions, capability: Capability, verdict: Verdict
) -> list[str]:
    if policy.allow_tools is not None:
        return [report_notes.listed(_listed(policy, capability))]
    limited = verdict != "deny" and not policy.is_unlimited
    return report_notes.applying(
        (
            (capability == "read" and limited and verdict == "allow", report_notes.READS_OUTSIDE),
            (capability == "write" and limited, report_notes.WRITES_INSIDE),
            (verdict == "ask" and run.interactive, report_notes.ASKED),
            (
                verdict == "deny" and _verdict(policy, capability) == "ask",
                report_notes.ASK_DENIED,
            ),
        )
    )
