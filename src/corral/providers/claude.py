"""The provider for Claude Code, with the config keys that workflow engines use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from corral.providers.agent import (
    DEFAULT_APPROVAL,
    AgentProvider,
    Check,
    check_list,
    check_one_of,
    check_positive,
    check_seconds,
    check_text,
)

APPROVALS = {
    "default": "default",
    "acceptEdits": "auto_edit",
    "bypassPermissions": "yolo",
    "plan": "plan",
}


class ClaudeCodeProvider(AgentProvider):
    """The default of ``permission_mode`` is ``acceptEdits``: files may be edited.

    ::

        provider = ClaudeCodeProvider({"timeout": 300})
        provider.validate()
        print(provider.generate("Fix the typo in README.md"))
    """

    agent = "claude-cli"
    name = "claude-code"
    description = "Claude Code AI agent via subprocess"
    checks: ClassVar[Mapping[str, Check]] = {
        "model": check_text,
        "permission_mode": check_one_of(*APPROVALS),
        "allowed_tools": check_list,
        "add_dirs": check_list,
        "max_turns": check_positive,
        "max_cost": check_positive,
        "working_dir": check_text,
        "timeout": check_seconds,
    }

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        mode = APPROVALS[str(self.config.get("permission_mode", "acceptEdits"))]
        options = super().options(context, mode)
        options.pop("permission_mode", None)
        if "add_dirs" in options:
            options["include_directories"] = options.pop("add_dirs")
        return options
