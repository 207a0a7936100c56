"""The provider for Claude Code, with the config keys that workflow engines use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corral.providers.agent import (
    DEFAULT_APPROVAL,
    AgentProvider,
    Check,
    a_list,
    a_text,
    one_of,
    positive,
    seconds,
)

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
        "timeout": seconds,
    }

    def options(
        self, context: Mapping[str, Any], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, Any]:
        mode = APPROVALS[self.config.get("permission_mode", "acceptEdits")]
        options = super().options(context, mode)
        options.pop("permission_mode", None)
        if "add_dirs" in options:
            options["include_directories"] = options.pop("add_dirs")
        return options
