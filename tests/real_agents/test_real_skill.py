"""The real programs list the skill that ``corral skill install`` copied, and the plugin, in their
first request to the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from support.command_in_process import run_in_process
from support.installed_agents import installed
from support.real_agents import RealAgent, for_agents

from corral._cli.skill import PLUGIN, SKILL
from corral.testing import Turn

[DESCRIPTION] = re.findall(r"^description: (.*)$", (SKILL / "SKILL.md").read_text(), re.MULTILINE)
GEMINI_SETTINGS = {"security": {"auth": {"selectedType": "gemini-api-key"}}}


def ask(agent: RealAgent, *more: str) -> str:
    """Run the program itself, as a user does; returns what it sent to the model."""
    env = agent.options([Turn(text="ok", repeat="forever")]).get("env", {})
    home = Path(os.environ["HOME"])
    match agent.name:
        case "gemini-cli":
            settings = home / ".gemini" / "settings.json"
            settings.parent.mkdir(exist_ok=True)
            settings.write_text(json.dumps(GEMINI_SETTINGS))
            words = ["-p", "hello", "--skip-trust"]
        case "codex-cli":
            url = json.dumps(env["OPENAI_BASE_URL"])
            words = ["exec", "--skip-git-repo-check", "-c", f"openai_base_url={url}", "hello"]
            env = {**env, "CODEX_API_KEY": env["OPENAI_API_KEY"]}
        case "opencode-cli":
            words = ["run", "hello"]
        case _:
            words = ["-p", "hello"]
    done = subprocess.run(
        [agent.program, *words, *more],
        cwd=agent.workspace,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return "".join(json.dumps(request.body) for request in agent.lane.requests)


@for_agents(*("gemini-cli", "claude-cli", "codex-cli", "opencode-cli"))
@pytest.mark.deep
def test_the_model_is_offered_the_installed_skill(
    agent: RealAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(agent.workspace)
    # Without the network, OpenCode lists the skills of the user only.
    place = "--user" if agent.name == "opencode-cli" else ""
    assert (
        run_in_process(f"skill install --agent {agent.name} {place}", monkeypatch).returncode == 0
    )
    assert DESCRIPTION in ask(agent)


@for_agents("claude-cli")
def test_claude_loads_the_plugin(agent: RealAgent) -> None:
    done = subprocess.run(
        [agent.program, "plugin", "validate", PLUGIN], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    sent = ask(agent, "--plugin-dir", str(PLUGIN))
    assert DESCRIPTION in sent
    assert "corral:corral" in sent


@pytest.mark.deep
@pytest.mark.claude
@pytest.mark.codex
@pytest.mark.parametrize("name", ["claude-cli", "codex-cli"])
def test_the_plugin_is_installed_from_the_package_as_a_marketplace(
    name: str, tmp_path: Path
) -> None:
    add = ["add"] if name == "codex-cli" else ["install"]
    program = installed(name)
    for words in (["marketplace", "add", str(PLUGIN)], [*add, "corral@corral"], ["list"]):
        done = subprocess.run(
            [program, "plugin", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "corral@corral" in done.stdout
