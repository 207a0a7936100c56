"""Workflows in a simulation: no agent, no model; with ``all`` no command and no open question."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import workflow_files
from support.pipeline_command import corral

from corral._cli.starters import find_starters
from corral._pipelines.execution.interviewers import AutoApprove
from corral._pipelines.simulation import SimulateMode
from corral._workflows import definition
from corral.workflows import run_sync

STARTERS = find_starters("corral._workflows", ".py")
ARGS = {
    "fix-test": {"test": "false"},
    "migrate-files": {"task": "t", "files": "*.py", "gate": "false"},
    "plan-review": {"task": "t"},
    "review-pull-request": {},
    "upgrade-dependency": {"package": "p", "upgrade": "touch upgraded", "test": "false"},
}
BOTH = """
@dataclasses.dataclass
class Review:
    ok: bool
    score: int

@corral.workflow
async def both(flow: Flow) -> list[str | int | bool | list[str]]:
    done = await flow.run("gemini-cli", "Do it", policy="edits", worktree={worktree}, until="false")
    review = await flow.run("claude", "Review it", output=Review, thread_id="t")
    text = await flow.generate("gemini:gemini-2.5-flash", "Say it")
    names = await flow.generate("gemini:gemini-2.5-flash", "Name it", output=list[str])
    here = await flow.command("touch here; exit 3", name="command")
    reply = await flow.ask("Good?", ["yes", "no"])
    return [done.text, review.ok, review.score, text, names, here.exit_code, here.stdout, reply]
"""
AGENTS = ["[Simulated] Response for stage: " + name for name in ("gemini-cli", "generate")]


@pytest.mark.parametrize("simulate", [True, "all"])
def test_agents_and_models_give_texts_or_values_of_their_types(
    tmp_path: Path, simulate: SimulateMode
) -> None:
    body = BOTH.format(worktree=simulate == "all")
    options = {} if simulate == "all" else {"interviewer": AutoApprove()}
    result = workflow_files.run(tmp_path, body, simulate=simulate, **options)
    names = ["[Simulated] Response for stage: generate-2"]
    assert result.output[:5] == [AGENTS[0], True, 1, AGENTS[1], names]
    ran = [0, "[Simulated] Response for stage: command"] if simulate == "all" else [3, ""]
    assert result.output[5:] == [*ran, "yes"]
    assert (tmp_path / "here").exists() is (simulate is True)
    assert not result.cost_usd


def test_an_output_that_cannot_be_simulated_fails_the_step(tmp_path: Path) -> None:
    body = """
    @corral.workflow
    async def one(flow: Flow) -> object:
        schema = {"type": "string", "pattern": "^[0-9]+$"}
        return await flow.run("gemini-cli", "Count", output=schema, max_retries=2)
    """
    result = workflow_files.run(tmp_path, body, simulate=True)
    assert result.status == "fail"
    assert "no simulated value fits the output of gemini-cli" in result.reason


@pytest.mark.parametrize("name", sorted(STARTERS))
def test_a_ready_workflow_can_be_tried_without_starting_anything(name: str, tmp_path: Path) -> None:
    text = STARTERS[name].text
    found = definition.load_text(str(tmp_path / STARTERS[name].file), text)
    folder = tmp_path / "empty"
    folder.mkdir()
    done = run_sync(found, args=ARGS[name], cwd=folder, durable=False, simulate="all")
    assert done.ok, done.reason
    assert not [*folder.iterdir()]


@pytest.mark.deep
def test_the_command_simulates_a_durable_run_that_waits_and_goes_on(workspace: Path) -> None:
    body = workflow_files.HEAD + BOTH.format(worktree=False)
    (workspace / "flow.py").write_text(body)
    words = ("--db", "runs.db")
    started = corral(
        "workflow", "run", "flow.py", "--simulate", "--run-id", "r", *words, cwd=workspace
    )
    assert started.returncode == 10, started.stderr
    assert (workspace / "here").exists()
    answered = corral("runs", "answer", "r", "no", *words, cwd=workspace)
    assert answered.returncode == 0, answered.stderr
    done = corral("runs", "resume", "r", "-q", *words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert '"no"' in done.stdout
    (workspace / "here").unlink()
    given = ("flow.py", "--simulate=all", "--no-durable", "-q")
    done = corral("workflow", "run", *given, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert '"yes"' in done.stdout
    assert not (workspace / "here").exists()


@pytest.mark.parametrize("simulate", [True, "all"])
def test_the_branches_of_worktrees_and_their_merge_are_simulated(
    tmp_path: Path, simulate: SimulateMode
) -> None:
    body = """
@corral.workflow
async def merges(flow: Flow) -> list[object]:
    one = await flow.run("gemini-cli", "Do it", policy="edits", worktree=True)
    two = await flow.run("gemini-cli", "Do it", policy="edits", worktree=True)
    look = await flow.run("gemini-cli", "Look", policy="reads", worktree=True)
    report = await flow.merge([one.branch, two.branch], into="main", gates=["false"])
    return [report.merged, one.branch != two.branch, look.branch]
"""
    result = workflow_files.run(tmp_path, body, simulate=simulate)
    assert result.output == [2, True, ""], result.reason
