"""Batches whose tasks are verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.scripted_agent import scripted_options
from support.verified_runs import FIX, PLAIN, git, make_project, orders

import corral
from corral._engine.run_options import as_json
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs


def options_of(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        **scripted_options(folder, sandbox="off", policy="edits", strict=False),
        "agent": "gemini-cli",
        "durable": False,
        **more,
    }


async def test_each_result_has_a_verdict_and_the_report_counts_them(tmp_path: Path) -> None:
    make_project(tmp_path / "project")
    options = options_of(tmp_path / "project", worktree=True, verify=PLAIN)
    tasks = [{"id": "honest", "task": orders(FIX)}, {"id": "liar", "task": orders("")}]
    report = await corral.batch(tasks, **options)
    assert report.ok
    assert (report.verified, report.gaps) == (1, 1)
    honest, liar = report.results
    assert (honest.verdict, honest.gaps, honest.branch != "") == ("verified", (), True)
    assert liar.verdict == "gaps"
    assert "exited with 1" in liar.gaps[0]


@pytest.mark.deep
async def test_a_branch_has_what_was_checked(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_project(project)
    cheat = f"{FIX}\nrm tests/test_calc.py; echo > conftest.py"
    options = options_of(project, worktree=True, verify=PLAIN)
    report = await corral.batch([orders(cheat)], **options)
    assert "tests/test_calc.py was changed" in report.results[0].gaps[0]
    report = await corral.batch([orders(cheat)], put_back=True, **options)
    (result,) = report.results
    assert result.verdict == "verified", result.gaps
    assert git(project, "diff", "--name-only", "main", result.branch) == "calc.py"


def says_all(result: corral.Result[Any]) -> bool:
    return "All" in result.text


async def test_in_memory_a_check_may_be_a_function(tmp_path: Path) -> None:
    make_project(tmp_path / "project")
    options = options_of(tmp_path / "project", verify=[says_all])
    report = await corral.batch([orders("")], **options)
    assert [result.verdict for result in report.results] == ["verified"]


@pytest.mark.parametrize(
    "verify", [says_all, corral.files_exist("a"), [corral.command_succeeds("true")]]
)
def test_a_durable_run_stores_commands_only(verify: Any) -> None:
    with pytest.raises(ConfigError, match="with commands only"):
        as_json(RunKwargs(verify=verify))
    assert as_json(RunKwargs(verify="true")) == {"verify": "true"}
