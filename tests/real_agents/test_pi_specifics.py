"""pi: what only this agent does. Corral adds an extension to it that denies calls, and pi changes
paths before it uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attack_workspace import SECRET, AttackWorkspace
from support.files import file_names
from support.model_scripts import sent_json, steps
from support.real_agents import RealAgent, for_agents

from corral.testing import say

pytestmark = pytest.mark.timeout(300)


@for_agents("pi-cli")
async def test_a_run_ends_if_the_extension_cannot_be_loaded(
    agent: RealAgent, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral._agents.pi.FENCE", "this is no code")
    result = await agent.run(steps(agent.write("new.txt")), policy="edits")
    assert not result.ok
    assert file_names(workspace) == []


@for_agents("pi-cli")
async def test_a_system_prompt_is_not_taken_for_the_name_of_a_file(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "Be KIND.").write_text("WORDS of a file")
    result = await agent.run([say("Hello.")], system_prompt="Be KIND.")
    assert result.ok
    assert "Be KIND." in sent_json(agent.requests)
    assert "WORDS" not in sent_json(agent.requests)


@for_agents("pi-cli")
async def test_names_that_pi_changes_lead_nowhere_outside(
    agent: RealAgent, workspace: Path
) -> None:
    """It replaces an apostrophe and blanks of other scripts, and removes ``@``."""
    trap = AttackWorkspace(workspace)
    (workspace / "it\u2019s").symlink_to(trap.out / "secret.txt")
    (workspace / "a b").symlink_to(trap.out)
    (workspace / "a\u00a0b").mkdir()
    (workspace / "a\u00a0b" / "secret.txt").write_text("inside")
    trap.remember()
    calls = [
        agent.read("it's"),
        agent.read("a\u00a0b/secret.txt"),
        agent.write("a\u00a0b/new.txt"),
        agent.write(f"@{trap.out}/new.txt"),
    ]
    await agent.attempt(calls, policy="edits")
    assert [path for path in trap.changes() if path.startswith(str(trap.out))] == []
    assert SECRET not in sent_json(agent.requests)
