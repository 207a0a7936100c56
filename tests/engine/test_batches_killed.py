"""A batch is killed, at any moment, and goes on: no result lost, none twice, none in halves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine.batch_place import results_of

PROGRAM = Path(__file__).parent / "programs" / "killed_batch.py"
COUNT = 7
SAMPLE = (2, 9, 20, 27)
MOMENTS = range(1, 45)


def run(
    folder: Path, moment: int = 0, *, count: int = COUNT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, folder, str(count), str(moment)],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=110,
    )


def done(folder: Path) -> Counter[str]:
    """Task → how often it was worked at."""
    return Counter((folder / "log").read_text().split())


def name_of(moment: int) -> Any:
    mark = () if moment in SAMPLE else (pytest.mark.slow,)
    return pytest.param(moment, marks=mark, id=str(moment))


@pytest.mark.parametrize("moment", [name_of(each) for each in MOMENTS])
def test_killed_at_any_moment_it_goes_on(workspace: Path, moment: int) -> None:
    order = {"IN_ORDER": "1"} if moment % 2 else {}
    first = run(workspace, moment, env=order)
    if first.returncode == 0:
        pytest.skip("it has fewer moments")
    assert first.returncode == -signal.SIGKILL, first.stderr
    where = (workspace / "moment").read_text()
    second = run(workspace, env=order)
    assert second.stdout == f"{COUNT} 0 []\n", (where, second.stderr)
    found = results_of(workspace / "r.jsonl")
    assert set(found) == {f"t{n}" for n in range(COUNT)}, where
    if order:
        assert list(found) == [f"t{n}" for n in range(COUNT)]
    # Three were under way at most; what had ended is never begun again.
    again = {task: times - 1 for task, times in done(workspace).items() if times > 1}
    assert sum(again.values()) <= 3, (where, again)


def test_killed_again_and_again(workspace: Path) -> None:
    moments = 12
    while (ended := run(workspace, moments, count=12)).returncode:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        moments += 9
        assert moments < 100, "it never ends"
    assert ended.stdout == "12 0 []\n"
    assert len(results_of(workspace / "r.jsonl")) == 12


def test_poison_is_given_up_and_the_rest_is_done(workspace: Path) -> None:
    kills = 0
    while (ended := run(workspace, env={"POISON": "t2"})).returncode:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        kills += 1
        assert kills < 8, "it is never given up"
    assert ended.stdout == "6 1 ['dead_letter']\n", ended.stderr
    found = results_of(workspace / "r.jsonl")
    assert [task for task, line in found.items() if line["status"] == "failed"] == ["t2"]
    assert "died 5 times" in found["t2"]["error"]["message"]
    assert done(workspace)["t2"] == 5
    assert len(found) == COUNT
