"""The blocking face of workflow engines, over the real Claude Code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from claude.conftest import KEY, MODEL
from support.claude_tools import read, shell, write
from support.gemini_tools import file_names, processes_matching, sent_json, steps

from corral.providers import ProviderError, ResponseProvider, ResponseProviderFactory
from corral.testing import Turn, fail, say

if TYPE_CHECKING:
    from claude.conftest import Claude

pytestmark = [pytest.mark.claude, pytest.mark.timeout(120)]


def provider(
    claude: Claude, patch: pytest.MonkeyPatch, script: Sequence[Turn], **config: Any
) -> ResponseProvider:
    """Found, led and paid for as an engine's would be: by the environment."""
    claude.options(script)
    patch.setenv("ANTHROPIC_BASE_URL", claude.lane.url)
    patch.setenv("ANTHROPIC_API_KEY", KEY)
    patch.setenv("PATH", str(Path(claude.program).parent), prepend=":")
    return ResponseProviderFactory.create("claude-code", {"model": MODEL, **config})


def test_an_engine_gets_the_response_and_what_was_written(
    claude: Claude, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provider(claude, monkeypatch, steps(write("a.txt", "hi"), shell("touch ran.txt")))
    made.validate()
    assert claude.requests == []
    (workspace / "prompt.md").write_text("Write a.txt, please")
    result = made.generate(
        "something else",
        {"project_root": workspace, "prompt_file": "prompt.md"},
        system_prompt="Be brief.",
        response_timeout=90,
    )
    assert result.response == "done"
    assert result.files == {str(workspace / "a.txt"): None}
    assert file_names(workspace) == ["a.txt", "prompt.md"]  # edits are allowed, the shell is not
    first = claude.requests[0]
    assert first.last_text == "Write a.txt, please"
    assert "Be brief." in first.system
    assert processes_matching(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("mode", "written"),
    [
        ("default", []),
        ("acceptEdits", ["a.txt"]),
        ("bypassPermissions", ["a.txt", "ran.txt"]),
        ("plan", []),
    ],
)
def test_its_own_words_for_what_it_may_do_are_kept_to(
    claude: Claude,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    written: list[str],
) -> None:
    script = steps(write("a.txt"), shell("touch ran.txt"))
    made = provider(claude, monkeypatch, script, permission_mode=mode)
    made.generate("do it", {"project_root": workspace})
    assert file_names(workspace) == written


def test_its_other_keys_reach_it(
    claude: Claude, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "far.txt").write_text("far words\n")
    script = steps(read(more / "far.txt"), write("a.txt"), shell("echo hi"))
    config = {"add_dirs": [str(more)], "allowed_tools": ["Read"], "working_dir": str(workspace)}
    made = provider(claude, monkeypatch, script, **config)
    assert made.generate("do it").response == "done"
    assert "far words" in sent_json(claude.requests)
    assert "Bash" not in claude.requests[0].tools
    assert file_names(workspace) == ["a.txt"]

    endless = [Turn(calls=[read("nope")], usage={"input": 90_000, "output": 900}, repeat="forever")]
    made = provider(claude, monkeypatch, endless, max_turns=2)
    with pytest.raises(ProviderError, match=r"claude-code: .*the turn limit of 2 was"):
        made.generate("do it", {"project_root": workspace})
    made = provider(claude, monkeypatch, endless, max_budget_usd=0.01)
    with pytest.raises(ProviderError, match=r"claude-code: .*the budget of \$0.01 is spent"):
        made.generate("do it", {"project_root": workspace})


def test_what_went_wrong_is_told_with_what_to_do(
    claude: Claude, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "0")
    made = provider(claude, monkeypatch, [fail(401, "invalid x-api-key")] * 9)
    with pytest.raises(ProviderError, match="Set ANTHROPIC_API_KEY"):
        made.generate("Hello", {"project_root": workspace})
    made = provider(claude, monkeypatch, [Turn(text="slow", hang="after")], timeout=3)
    with pytest.raises(ProviderError, match=r"raise timeout in the config, or response_timeout"):
        made.generate("Hello", {"project_root": workspace})
    made = provider(claude, monkeypatch, [say("never")])
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ProviderError, match="no credentials for Claude Code were found"):
        made.generate("Hello", {"project_root": workspace})
    assert claude.requests == []
