"""Many runs at once, each with its own folder, model and memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import exclusive_machine, processes_matching, shell, steps, write

import corral
from corral import RunKwargs
from corral.system import paths
from corral.testing import Lane

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = [pytest.mark.gemini_cli, pytest.mark.timeout(240)]


def descriptors() -> set[str]:
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return found


@pytest.mark.parametrize("crowd", [5, pytest.param(20, marks=pytest.mark.slow)])
async def test_many_runs_at_once_all_succeed_and_leave_nothing_behind(
    gemini: Gemini, workspace: Path, tmp_path: Path, crowd: int
) -> None:
    async def one(number: int, options: RunKwargs) -> corral.Result:
        return await corral.run("gemini-cli", f"question {number}", **options)

    asked: list[RunKwargs] = []
    lanes: list[Lane] = []
    for number in range(crowd):
        folder = workspace / f"part-{number}"
        folder.mkdir()
        script = steps(write("mine.txt", f"{number}\n"), shell(f"echo {number} > shell.txt"))
        asked.append(gemini.options(script, cwd=folder, policy="all", timeout=200))
        lanes.append(gemini.lane)
    before = descriptors()

    with exclusive_machine(tmp_path):
        async with asyncio.timeout(220), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(n, options)) for n, options in enumerate(asked)]

    results = [task.result() for task in tasks]
    assert [r.error for r in results if not r.ok] == []
    assert len({r.session_id for r in results}) == crowd
    assert len({r.resume_token for r in results}) == crowd
    for number, (result, lane) in enumerate(zip(results, lanes, strict=True)):
        folder = workspace / f"part-{number}"
        assert {Path(f.path).relative_to(folder).as_posix() for f in result.files} == {
            "mine.txt",
            "shell.txt",
        }
        assert (folder / "mine.txt").read_text() == (folder / "shell.txt").read_text()
        assert [r.last_text for r in lane.requests] == [f"question {number}"] * 3
        assert result.files_complete
    assert processes_matching(str(tmp_path)) == []
    assert descriptors() - before == set()
    assert list(paths.process_registry().iterdir()) == []
    assert list(paths.sessions().glob("*/tmp")) == []
    assert sorted(os.listdir(tmp_path)) == ["corral-home", "user-home", "workspace"]
    assert os.listdir(tmp_path / "user-home") == []
