"""``until=verified(…)``: rounds until the work is verified, and the best state is kept."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.sandbox import needs_sandbox

import corral
from corral import errors
from corral._core.receipt_text import receipt_markdown
from corral._export import document
from corral._runs import stored_run
from corral.testing import ModelServer, Turn, call, say


def shell(command: str) -> list[Turn]:
    return [call("shell", command=command), say("done")]


async def converge(
    workspace: Path, commands: list[str], *checks: Any, **options: Any
) -> tuple[corral.Result, list[str]]:
    """The result, and the prompts that the agent got."""
    script = [turn for command in commands for turn in shell(command)]
    with ModelServer(script) as server:
        usual: dict[str, Any] = {"policy": "all", "sandbox": "off", "rounds": len(commands) - 1}
        result = await corral.run(
            "gemini:gemini-2.5-flash",
            "Do it",
            cwd=workspace,
            env=server.env,
            until=corral.verified(*checks),
            **{**usual, **options},
        )
        prompts = [request.last_text for request in server.requests[::2]]
    return result, prompts


async def test_what_failed_is_sent_until_it_is_verified(workspace: Path) -> None:
    commands = ["touch a", "touch b", "touch c"]
    result, prompts = await converge(workspace, commands, "test -f a", "echo no b; test -f b",
                                     rounds=5)  # fmt: skip
    assert (result.ok, result.verdict, len(prompts)) == (True, "verified", 2)
    assert "no b" in prompts[1]
    assert "exited with 1" in prompts[1]
    assert not (workspace / "c").exists()


async def test_the_best_state_is_put_back_if_the_last_is_worse(workspace: Path) -> None:
    commands = ["touch a b", "touch c && echo x > other", "rm a b"]
    checks = ("test -f a", "test -f b", "test -f c", "test -f d")
    result, prompts = await converge(workspace, commands, *checks)
    assert (result.ok, len(prompts)) == (False, 3)
    assert result.error is not None
    assert result.error.code == errors.TurnLimit.code
    assert "the files are those of round 2" in result.error.message
    assert sorted(path.name for path in workspace.iterdir()) == ["a", "b", "c", "other"]
    assert result.receipt is not None
    passed = [each.passed for each in result.receipt.evidence]
    assert passed == [True, True, True, False]


async def test_a_round_that_fails_leaves_the_best_state(workspace: Path) -> None:
    checks = ("test -f a", "test -f b")
    result, _ = await converge(workspace, ["touch a", "rm a"], *checks, rounds=3, max_calls=3)
    assert not result.ok
    assert (workspace / "a").exists()
    assert result.receipt is not None
    assert result.verdict == "gaps"


async def test_the_last_state_stays_if_it_is_as_good(workspace: Path) -> None:
    checks = ("test -f a", "test -f b")
    result, _ = await converge(workspace, ["touch a", "touch other"], *checks)
    assert not result.ok
    assert sorted(path.name for path in workspace.iterdir()) == ["a", "other"]


@needs_sandbox
async def test_of_scenarios_the_agent_reads_counts_and_classes(
    workspace: Path, tmp_path: Path
) -> None:
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    for name in "ab":
        text = f'class = "files"\ncommand = "echo CANARY; test -f {name}"'
        (held_out / f"{name}.toml").write_text(text)
    result, prompts = await converge(
        workspace, ["touch a", "touch b"], scenarios=held_out, sandbox="needed"
    )
    assert (result.ok, result.verdict) == (True, "verified")
    assert (
        "1 of 2 held-out scenarios are satisfied (50%, needed 90%)\n- files: 1 of 2" in (prompts[1])
    )
    assert result.receipt is not None
    assert result.receipt.evidence[0].details["fraction"] == 1.0


@pytest.mark.deep
@needs_sandbox
async def test_scenarios_that_cannot_be_run_use_up_no_rounds(
    workspace: Path, tmp_path: Path
) -> None:
    """No round can change it. The reason names none of them."""
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    (held_out / "scenarios.toml").write_text(f'python = "{sys.executable}"')
    (held_out / "test_secret.py").write_text("import not_there\n")
    result, prompts = await converge(
        workspace, ["touch a", "touch b"], scenarios=held_out, sandbox="needed", rounds=5
    )
    assert (len(prompts), result.ok, result.verdict) == (1, False, "gaps")
    assert result.error is not None
    assert "1 of 1 held-out scenarios could not be run" in result.error.message
    assert "secret" not in str(result)


async def test_there_must_be_something_to_verify(workspace: Path) -> None:
    with pytest.raises(errors.ConfigError, match="nothing to verify"):
        await converge(workspace, ["true"])


def names_of(result: corral.Result) -> list[tuple[str, str]]:
    return sorted((Path(file.path).name, file.kind) for file in result.files)


async def test_the_result_names_the_kept_round_and_only_its_files(workspace: Path) -> None:
    commands = ["touch a b", "touch c && echo x > other", "rm a b && touch later"]
    checks = ("test -f a", "test -f b", "test -f c", "test -f d")
    result, _ = await converge(workspace, commands, *checks)
    assert (result.rounds, result.kept_round) == (3, 2)
    created = [(name, "created") for name in ("a", "b", "c", "other")]
    assert names_of(result) == created
    pieces: list[str] = []
    assert result.resume_token is not None
    assert result.receipt is not None
    stored = await asyncio.to_thread(stored_run.find, result.resume_token)
    document.write(stored, pieces.append)
    assert receipt_markdown(result.receipt) in "".join(pieces)
    result, _ = await converge(workspace, ["touch d"], *checks)
    assert (result.verdict, result.rounds, result.kept_round) == ("verified", 1, 1)


async def test_files_that_git_ignores_stay_in_the_result(workspace: Path) -> None:
    subprocess.run(("git", "init", "-q", str(workspace)), check=True)
    (workspace / ".gitignore").write_text("*.log\n")
    commands = ["touch a", "rm a; echo x > b.log; echo x > c"]
    result, _ = await converge(workspace, commands, "test -f a", "test -f d")
    assert result.kept_round == 1
    assert (workspace / "b.log").exists()
    assert not (workspace / "c").exists()
    assert ("c", "created") not in names_of(result)


async def test_if_nothing_passed_the_last_state_stays_and_is_not_verified(workspace: Path) -> None:
    checks = ("test -f a", "test -f b")
    result, _ = await converge(workspace, ["touch x", "touch y"], *checks, rounds=3, max_calls=3)
    assert not result.ok
    assert (workspace / "y").exists()
    assert (result.verdict, result.rounds, result.kept_round) == ("unverified", 2, None)


@needs_sandbox
async def test_the_cost_has_that_of_the_judging_model(workspace: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    (held_out / "a.toml").write_text('prompt = "Is it done?"\nrubric = "There is a file a."\n')
    judged = [say('{"satisfied": false, "reason": "no"}'), say('{"satisfied": true, "reason": ""}')]
    with ModelServer(judged) as judge, pytest.MonkeyPatch.context() as patch:
        for name, value in judge.env.items():
            patch.setenv(name, value)
        result, _ = await converge(
            workspace,
            ["touch a", "touch b"],
            scenarios=held_out,
            judge="gemini:gemini-2.5-flash",
            sandbox="needed",
        )
        assert len(judge.requests) == 2
    assert (result.verdict, result.rounds) == ("verified", 2)
    assert result.receipt is not None
    agent = result.receipt.run
    assert result.cost.usd is not None
    assert agent.cost.usd is not None
    assert result.cost.usd > agent.cost.usd
    assert result.usage.total is not None
    assert result.usage.total > (agent.usage.total or 0)


async def test_a_round_that_cannot_start_leaves_the_best_state(workspace: Path) -> None:
    """The budget is spent exactly when a round ends."""
    checks = ("test -f a", "test -f b")
    commands = ["touch a", "rm a", "touch c"]
    result, prompts = await converge(workspace, commands, *checks, max_calls=4)
    assert result.error is not None
    assert (result.error.code, len(prompts)) == (errors.BudgetExceeded.code, 2)
    assert (result.kept_round, result.verdict) == (1, "gaps")
    assert [path.name for path in workspace.iterdir()] == ["a"]


@pytest.mark.parametrize("is_repository", [True, False])
async def test_what_is_put_back_follows_no_link_of_the_agent(
    workspace: Path, tmp_path: Path, is_repository: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("mine")
    if is_repository:
        subprocess.run(("git", "init", "-q", str(workspace)), check=True)
    commands = ["mkdir d; echo 1 > d/a", f"rm -r d; ln -s {outside} d; rm -f d/b"]
    result, _ = await converge(workspace, commands, "grep -q 1 d/a", "test -f b")
    assert result.kept_round == 1
    assert not (workspace / "d").is_symlink()
    assert (workspace / "d" / "a").read_text() == "1\n"
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"a": "mine"}
