"""Claude Code, as workflow engines know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corral.providers.agent import AgentProvider, Check, a_list, a_text, one_of, positive

APPROVALS = {
    "default": "default",
    "acceptEdits": "auto_edit",
    "bypassPermissions": "yolo",
    "plan": "plan",
}


class ClaudeCodeProvider(AgentProvider):
    """Files may be edited unless ``permission_mode`` says otherwise."""

    agent = "claude-cli"
    name = "claude-code"
    description = "Claude Code AI agent via subprocess"
    checks: ClassVar[Mapping[str, Check]] = {
        "model": a_text,
        "permission_mode": one_of(*APPROVALS),
        "allowed_tools": a_list,
        "add_dirs": a_list,
        "max_turns": positive,
        "max_budget_usd": positive,
        "working_dir": a_text,
        "timeout": positive,
    }

    def options(self, context: Mapping[str, Any]) -> dict[str, Any]:
        options = super().options(context)
        if "permission_mode" in options:
            options["approval_mode"] = APPROVALS[options.pop("permission_mode")]
        if "add_dirs" in options:
            options["include_directories"] = options.pop("add_dirs")
        return options
