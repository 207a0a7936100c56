"""The blocking providers for workflow engines, over real agents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.files import file_names
from support.model_scripts import sent_json, steps
from support.processes import processes_matching
from support.real_agents import KEY, RealAgent, for_agents

from corral.providers import ProviderError, ResponseProvider, ResponseProviderFactory
from corral.testing import Turn, fail, say

pytestmark = pytest.mark.timeout(400)

NAMES = {"gemini-cli": "gemini-cli", "claude-cli": "claude-code"}
"""Agent → the name of its provider."""


def provider(
    agent: RealAgent, patch: pytest.MonkeyPatch, script: Sequence[Turn], **config: Any
) -> ResponseProvider:
    """A provider that finds its program, model and key in the environment, as in an engine."""
    agent.options(script)
    probe = agent.record.probe
    patch.setenv(probe.url_env, agent.lane.url)
    patch.setenv(probe.key_env, KEY)
    patch.setenv("PATH", f"{Path(agent.program).parent}{os.pathsep}{os.environ['PATH']}")
    return ResponseProviderFactory.create(NAMES[agent.name], {"model": probe.model, **config})


@for_agents("gemini-cli", "claude-cli")
def test_an_engine_gets_the_response_and_the_written_files(
    agent: RealAgent,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Edits are allowed, the shell is not."""
    script = steps(agent.write("a.txt", "hi"), agent.shell("touch ran.txt"))
    made = provider(agent, monkeypatch, script)
    made.validate()
    assert agent.requests == []
    (workspace / "prompt.md").write_text("Write a.txt, please")
    with caplog.at_level("WARNING", "corral.providers"):
        result = made.generate(
            "something else",
            {"project_root": workspace, "prompt_file": "prompt.md"},
            system_prompt="Be brief.",
            response_timeout=120,
        )
    assert result.response == "done"
    assert result.files == {str(workspace / "a.txt"): None}
    assert file_names(workspace) == ["a.txt", "prompt.md"]
    assert (workspace / "a.txt").read_text() == "hi"
    assert [denied.partition(":")[0] for denied in result.denied] == [agent.tool_name("run")]
    assert f"denied by the policy: {agent.tool_name('run')}" in caplog.text
    first = agent.turns[0]
    assert first.last_text.endswith("Write a.txt, please")
    assert "Be brief." in first.system + first.last_text
    assert processes_matching(str(tmp_path)) == []


@for_agents("gemini-cli", "claude-cli")
def test_an_error_says_what_to_do(
    agent: RealAgent, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "0")
    made = provider(agent, monkeypatch, [fail(401, "API key not valid")] * 9)
    with pytest.raises(ProviderError, match=f"Set {agent.record.probe.key_env}"):
        made.generate("Hello", {"project_root": workspace})
    made = provider(agent, monkeypatch, [say("never")])
    monkeypatch.delenv(agent.record.probe.key_env)
    monkeypatch.delenv(agent.record.probe.url_env)
    with pytest.raises(ProviderError, match=r"no credentials .* were found"):
        made.generate("Hello", {"project_root": workspace})
    assert agent.requests == []


@for_agents("claude-cli")
def test_a_timeout_says_which_options_to_raise(
    agent: RealAgent, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provider(agent, monkeypatch, [Turn(text="slow", hang="after")], timeout=3)
    with pytest.raises(ProviderError, match=r"raise timeout in the config, or response_timeout"):
        made.generate("Hello", {"project_root": workspace})


@pytest.mark.parametrize(
    ("mode", "written"),
    [
        ("default", []),
        ("acceptEdits", ["a.txt"]),
        ("bypassPermissions", ["a.txt", "ran.txt"]),
        ("plan", []),
    ],
)
@for_agents("claude-cli")
def test_the_permission_modes_of_the_agent_are_honored(
    agent: RealAgent,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    written: list[str],
) -> None:
    script = steps(agent.write("a.txt"), agent.shell("touch ran.txt"))
    made = provider(agent, monkeypatch, script, permission_mode=mode)
    made.generate("do it", {"project_root": workspace})
    assert file_names(workspace) == written


@for_agents("claude-cli")
def test_other_configuration_keys_reach_the_agent(
    agent: RealAgent, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "far.txt").write_text("far words\n")
    script = steps(agent.read(more / "far.txt"), agent.write("a.txt"), agent.shell("echo hi"))
    config = {"add_dirs": [str(more)], "allowed_tools": ["Read"], "working_dir": str(workspace)}
    made = provider(agent, monkeypatch, script, **config)
    assert made.generate("do it").response == "done"
    assert "far words" in sent_json(agent.requests)
    assert "Bash" not in agent.requests[0].tools
    assert file_names(workspace) == ["a.txt"]

    usage = {"input": 90_000, "output": 900}
    endless = [Turn(calls=[agent.read("nope")], usage=usage, repeat="forever")]
    made = provider(agent, monkeypatch, endless, max_turns=2)
    with pytest.raises(ProviderError, match=r"claude-code: .*the turn limit of 2 was"):
        made.generate("do it", {"project_root": workspace})
    made = provider(agent, monkeypatch, endless, max_cost=0.01)
    with pytest.raises(
        ProviderError, match=r"claude-code: .*does not fit into the budget: .*=0\.01"
    ):
        made.generate("do it", {"project_root": workspace})
