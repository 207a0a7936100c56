"""Grants in Qwen Code's own controls, and in our answers to its permission requests.

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

from corral.agents.grants import Grants
from corral.agents.shared.enforced import READS_OUTSIDE, UNASKED_BY_DEFAULT
from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import Act, Controls, Enforced, Form
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import Capability, Enforcer
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


def controls(grants: Grants, run: RunOptions) -> Controls:
    """Raises ``PolicyError`` for a tool name that is nearly one of Qwen Code's."""
    check_names(grants, TOOLS, "Qwen Code", prefixed("mcp__"), strict=run.strict)
    deny = [*_NEVER]
    ask: list[Json] = []
    enforced: dict[Capability, Enforced] = {}
    for capability, tools in _TOOLS_OF.items() if not grants.is_native else ():
        grant = grants.of(capability)
        # It also denies commands that do what a denied tool does, whatever a rule allows.
        needed = not grants.shell.is_denied and grant.would_ask
        if grant.is_denied and not needed:
            deny += tools
        else:
            ask += tools
        reads = capability == "read" and grants.is_limited and not grant.is_denied
        enforced[capability] = Enforced(
            "native" if grant.is_denied else "brokered", READS_OUTSIDE if reads else ""
        )
    ask += [name for name in grants.denied if name not in deny]
    ask += _HARMLESS if run.hooked else ()
    # Tools of servers that are not started cannot be called; the others ask.
    started = grants.listed is not None or not grants.mcp.is_denied
    own: Enforcer = "native" if grants.own_mcp.is_denied else "brokered"
    enforced["mcp"] = Enforced("brokered" if started else "native", exceptions={"own": own})
    return Controls(
        enforced=enforced,
        own_default="its mode default, in which it reads, and asks for the rest",
        flags=(
            "--approval-mode",
            "plan" if grants.is_plan else "default",
            f"--exclude-tools={','.join(deny)}",
        ),
        files={SETTINGS_FILE: json.dumps({"permissions": {"ask": ask}})},
        # A server whose tools are all denied is not even started.
        servers={
            server.name: ""
            for server in run.mcp_servers
            if grants.listed is not None or grants.of_server(server.name).verdict != "deny"
        },
        unhooked=(UNASKED_BY_DEFAULT,) if grants.is_native else (),
    )
