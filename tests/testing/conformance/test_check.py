"""The conformance kit distinguishes agents that work from those that do not."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from corral._testing.conformance.check import Row, markdown
from corral._testing.conformance.scenarios import SCENARIOS
from corral.errors import ConfigError, NotInstalled
from corral.testing import Report, check_agent

CORRAL = str(Path(sys.executable).with_name("corral"))
PLAIN = shlex.join([sys.executable, str(Path(__file__).parents[2] / "programs" / "plain_acp.py")])


async def test_the_built_in_agent_passes_every_scenario(workspace: Path) -> None:
    report = await check_agent("corral")
    assert report.ok, report
    assert [row.outcome for row in report.rows] == ["pass"] * len(SCENARIOS), report


async def test_an_agent_without_a_probe_uses_its_own_model(workspace: Path) -> None:
    report = await check_agent(PLAIN)
    outcomes = {row.scenario: row.outcome for row in report.rows}
    assert outcomes.pop("starts, answers and exits") == "pass", report
    assert set(outcomes.values()) == {"skip"}
    assert report.ok


@pytest.mark.deep
def test_a_command_is_checked_with_its_variables_and_its_reported_version(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reported is also its version in the list of agents, without starting it again."""
    program = workspace / "mine"
    program.write_text(f'#!/bin/sh\n[ "$GIVEN$NAMED" = "a=b c" ] && exec {PLAIN} mine "$GIVEN"\n')
    program.chmod(0o700)
    (workspace / "own.toml").write_text(f'[agents.mine]\ncommand = "{program} --acp"\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(workspace / "own.toml"))
    monkeypatch.setenv("NAMED", " c")

    def corral(*words: str) -> dict[str, object]:
        command = [CORRAL, "agents", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        shown: dict[str, object] = json.loads(done.stdout)
        return shown

    report = corral("check", "mine", "--env", "GIVEN=a=b", "--env", "NAMED")
    assert report["ok"], report
    assert "a=b" in json.dumps(report["rows"])
    assert corral("show", "mine")["version"] == "a=b"


async def test_an_agent_that_does_not_start_fails_with_the_reason(workspace: Path) -> None:
    report = await check_agent("true --acp")
    assert not report.ok
    assert [row.tier for row in report.failed] == ["start"]
    assert report.failed[0].seen


async def test_a_missing_agent_is_raised(workspace: Path) -> None:
    with pytest.raises(NotInstalled):
        await check_agent("no-such-agent --acp")


async def test_an_unknown_tier_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no tier 'permision'") as raised:
        await check_agent("corral", only=["permision"])
    assert "permissions" in (raised.value.hint or "")


async def test_only_the_selected_tiers_are_run(workspace: Path) -> None:
    report = await check_agent("corral", only=["usage", "text"])
    assert {row.tier for row in report.rows} == {"usage", "text"}


def test_a_report_with_only_skips_is_not_ok() -> None:
    skipped = Row("start", "x", "skip", "", 0.0)
    passed = Row("start", "x", "pass", "", 0.0)
    failed = Row("start", "x", "fail", "", 0.0)
    assert not Report("a", (skipped,)).ok
    assert Report("a", (skipped, passed)).ok
    assert not Report("a", (failed, passed)).ok


async def test_an_agent_that_writes_without_permission_fails(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corral._builtin.tool_execution import ToolExecutor

    async def never(*_: object) -> None:
        return None

    monkeypatch.setattr(ToolExecutor, "_denial", never)
    report = await check_agent("corral", only=["permissions"])
    wrong = {row.scenario for row in report.failed}
    assert {"a denied write does not happen", "a denied command does not run"} <= wrong
    assert "a permitted command runs" not in wrong


@pytest.mark.deep
def test_the_command_prints_a_table_or_json(workspace: Path) -> None:
    def check(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CORRAL, "agents", "check", *words],
            cwd=workspace,
            capture_output=True,
            text=True,
            timeout=100,
        )

    done = check("corral", "--only", "text")
    assert done.returncode == 0, done.stderr
    assert "corral: 2 passed, 0 failed, 0 skipped" in done.stdout
    reported = json.loads(check("corral", "--only", "text", "--json").stdout)
    assert (reported["ok"], len(reported["rows"])) == (True, 2)
    assert check("true --acp", "--only", "start").returncode == 1
    many = check("corral", "chat:any-model", "--only", "text", "--json")
    assert [json.loads(line)["agent"] for line in many.stdout.splitlines()] == [
        "corral",
        "chat:any-model",
    ]
    both = check("corral", "chat:any-model", "--only", "text", "--markdown")
    assert both.returncode == 0, both.stderr
    assert "| The built-in agent " in both.stdout
    assert "| the answer arrives complete                              | ✓      | ✓ " in both.stdout
    assert check().returncode == 2
    assert check("corral", "codex-cli", "--program", "true").returncode == 2


def test_a_table_distinguishes_passed_skipped_and_not_run() -> None:
    first, second = SCENARIOS[0], SCENARIOS[1]
    drawn = markdown(
        [
            Report("gemini-cli", (Row("start", first.name, "pass", "fine", 0.0),)),
            Report(
                "corral",
                (
                    Row("start", first.name, "fail", "broken", 0.0),
                    Row("start", second.name, "skip", "it does not claim it", 0.0),
                ),
            ),
        ],
        not_run=["codex-cli"],
    )
    stream, ours, notes = drawn.split("\n\n")
    assert stream.splitlines()[0].split("|")[2:4] == [" gemini-cli ", " codex-cli "]
    assert stream.splitlines()[2].endswith("| ✓          | ?         |")
    assert ours.splitlines()[2].endswith("| ✗      |")
    assert ours.splitlines()[3].endswith("| – 1    |")
    assert notes == "1. it does not claim it"
