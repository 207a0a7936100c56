"""Antigravity: what only this agent does. It reads some paths otherwise than they are written, and
one of its own tools never asks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.attack_workspace import SECRET, AttackWorkspace
from support.files import file_names
from support.model_scripts import sent_json
from support.processes import processes_using
from support.real_agents import RealAgent, denied_tools, for_agents

import corral
from corral import errors
from corral._agents.antigravity.spec import KINDS
from corral.testing import Call, Turn, say
from corral.values import JsonObject

pytestmark = pytest.mark.timeout(300)

HOST = "corral-test-host"
WORDS = {"toolAction": "Working", "toolSummary": "a step"}
OFFERED_AS = {
    "list_dir": "list_directory",
    "find_by_name": "find_file",
    "grep_search": "search_directory",
    "write_to_file": "create_file",
    "replace_file_content": "edit_file",
}
"""The model's name for a tool → that of the package."""


@for_agents("antigravity-acp")
async def test_paths_that_it_would_change_lead_nowhere_outside(
    agent: RealAgent, workspace: Path
) -> None:
    """It takes a backslash for a slash, and ``file:`` URLs for paths, with the host as a folder."""
    trap = AttackWorkspace(workspace)
    trap.remember()
    up = "\\..".join(["", *([""] * 8)])
    outside = f"{workspace}/x{up}{str(trap.out).replace('/', chr(92))}"
    new: JsonObject = {"CodeContent": "x", "Overwrite": True, "Description": "x"}
    calls = [
        *(
            Call("view_file", {"AbsolutePath": path, **WORDS})
            for path in (f"{outside}\\secret.txt", f"file://{trap.out}/secret.txt")
        ),
        *(
            Call("write_to_file", {**new, "TargetFile": path, **WORDS})
            for path in (
                f"{outside}\\new.txt",
                f"file://{trap.out}/new.txt",
                f"file://{workspace}/x%5C..%5C..%5Cnew.txt",
                f"file://{HOST}{workspace}/new.txt",
            )
        ),
    ]
    results = await agent.attempt(calls, policy="edits")
    assert [path for path in trap.changes() if path.startswith(str(trap.out))] == []
    assert SECRET not in sent_json(agent.requests)
    assert denied_tools(results[0]) == ["view_file"] * 2 + ["create_file"] * 3
    # What was judged is what was written.
    assert (workspace / "new.txt").exists()
    assert not Path("/", HOST).exists()


@for_agents("antigravity-acp")
async def test_only_tools_that_ask_are_offered_and_a_command_has_no_input(
    agent: RealAgent, workspace: Path
) -> None:
    """With its own tool for commands comes ``manage_task``, which writes to running commands."""
    task = Call("manage_task", {"Action": "list", **WORDS})
    calls = [task, agent.shell("cat > got.txt; env > env.txt"), task]
    (result,) = await agent.attempt(calls, policy="all", timeout=60)
    assert result.ok, result.error
    assert {OFFERED_AS.get(name, name) for name in agent.turns[0].tools} == {*KINDS}
    assert (workspace / "got.txt").read_text() == ""
    assert "GEMINI_API_KEY" not in (workspace / "env.txt").read_text()


@for_agents("antigravity-acp")
async def test_many_calls_of_unknown_tools_do_not_end_the_turn(agent: RealAgent) -> None:
    calls = [Call(f"unknown{number}", {}) for number in range(8)]
    (result,) = await agent.attempt(calls)
    assert result.ok, result.error
    assert result.final_text == "done"


@for_agents("antigravity-acp")
async def test_what_it_would_replace_in_a_prompt_is_refused(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "log.txt").write_text("\x1b[31mred\x1b[0m\n")
    for prompt, attachments in (("a\x07b", []), ("what is it?", ["log.txt"])):
        result = await agent.run([say("done")], prompt, attachments=attachments)
        with pytest.raises(errors.InputRejected, match="control character"):
            result.raise_for_status()
    assert agent.requests == []


@for_agents("antigravity-acp")
async def test_after_an_error_the_session_goes_on_and_no_process_stays(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "note.pdf").write_bytes(b"%PDF-1.4 \xff")
    script = [say("one"), say("two")]
    async with agent.session(script) as session:
        first = await session.run("first question")
        broken = await session.run("a\x07b")
        second = await session.run("second question", attachments=["note.pdf"])
    assert (first.text, broken.ok, second.text) == ("one", False, "two")
    assert "first question" in sent_json(agent.turns[-1:])
    assert "application/pdf" in sent_json(agent.turns[-1:])
    assert file_names(workspace) == ["note.pdf"]


def harnesses(agent: RealAgent, folder: Path) -> list[int]:
    """The processes of the package's program that belong to this test."""
    found = processes_using(folder / "corral-home")
    return [process for process, line in found.items() if line.startswith(agent.program)]


@for_agents("antigravity-acp")
async def test_a_pool_does_not_keep_a_harness_for_each_prompt(
    agent: RealAgent, tmp_path: Path
) -> None:
    options = agent.options([Turn(text="done", repeat="forever")])
    async with corral.pool(agent.name, **options) as pool:
        for number in range(5):
            assert (await pool.run(f"question {number}")).ok
        assert pool.started == 1
        assert 1 <= len(harnesses(agent, tmp_path)) <= 2
    assert harnesses(agent, tmp_path) == []


@for_agents("antigravity-acp")
async def test_a_session_whose_harness_was_ended_goes_on(agent: RealAgent, tmp_path: Path) -> None:
    script = [Turn(text="done", repeat="forever")]
    async with agent.session(script) as session:
        await session.run("first question")
        (harness,) = harnesses(agent, tmp_path)
        os.kill(harness, signal.SIGKILL)
        broken = await session.run("second question")
        last = await session.run("third question")
    assert (broken.ok, last.text) == (False, "done")
    assert "first question" in sent_json(agent.turns[-1:])
