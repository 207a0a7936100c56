"""A small part of ``make chaos``, and proof that its checks find what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.case import Verdict

pytestmark = [
    pytest.mark.whole_program,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs /proc"),
]
TESTS = Path(__file__).parent
RUNS = 4


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'tools'}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.spine
@pytest.mark.worker_process
@pytest.mark.timeout(600)
def test_faulted_runs_end_tell_the_truth_and_leave_nothing() -> None:
    words = ("--count", str(RUNS), "--seed", "test", "--jobs", "3", "--skip-unfaulted")
    done = program("-m", "chaos", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faulted runs" in done.stdout


def test_a_false_status_a_survivor_and_a_run_without_an_end_are_found(tmp_path: Path) -> None:
    done = program(str(TESTS / "programs" / "broken_surfaces.py"), str(tmp_path))
    assert done.returncode == 0, done.stderr
    broken, endless, silent = map(Verdict.decode, done.stdout.encode().splitlines())
    assert (broken.ended, broken.true_status, broken.nothing_left) == (True, False, False)
    found = "\n".join(broken.problems)
    assert "work-0 was not written" in found
    assert "sleep 300" in found
    assert "temporary file" in found
    assert not endless.ended
    assert "exit code 1 without a message" in silent.problems[0]
