"""The provider for Claude Code."""

from __future__ import annotations

import pytest

from corral.providers import ClaudeCodeProvider, ResponseProviderFactory


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"permission_mode": "yolo"}, "permission_mode must be one of default, acceptEdits"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"add_dirs": "src"}, "add_dirs must be a list, got: str"),
        ({"max_budget_usd": -1}, "max_cost must be more than 0"),
        ({"max_budget_usd": 1, "max_cost": 2}, "give one of them"),
    ],
)
def test_an_invalid_config_value_of_claude_code_is_an_error(
    config: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ResponseProviderFactory.create("claude-code", config)


def test_the_config_keys_of_claude_code_become_options() -> None:
    config = {"permission_mode": "plan", "add_dirs": ["a"], "max_budget_usd": 0.5}
    provider = ClaudeCodeProvider(config)
    options = provider.options({})
    assert (options["approval_mode"], options["include_directories"]) == ("plan", ["a"])
    assert (options["max_cost"], "max_budget_usd" in options) == (0.5, False)
    assert ClaudeCodeProvider().options({})["approval_mode"] == "auto_edit"
