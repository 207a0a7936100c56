"""What ``make test`` runs: the suite in parallel, then up to five failed tests alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole_program

RUN_SUITE = Path(__file__).parents[1] / "tools" / "run_suite.py"
# Fails in a worker of pytest-xdist and passes alone.
UNSTABLE = "import os\ndef test_unstable(): assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
BROKEN = "def test_broken(): assert False\n"
MANY_UNSTABLE = """import os, pytest
@pytest.mark.parametrize("n", range(6))
def test_unstable(n): assert 'PYTEST_XDIST_WORKER' not in os.environ
"""


def run_suite(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
    return subprocess.run(
        [sys.executable, str(RUN_SUITE), "-p", "xdist"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_test_that_passes_alone_is_listed_as_unstable(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(UNSTABLE)
    done = run_suite(tmp_path)
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith(
        "UNSTABLE (failed in parallel, passed alone):\n  test_x.py::test_unstable"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (UNSTABLE + BROKEN, "1 failed, 1 passed"),
        (MANY_UNSTABLE, "6 failed"),
        ("def test_x(:", "error"),
    ],
    ids=["fails again", "more than five", "collection error"],
)
def test_the_suite_fails(tmp_path: Path, source: str, reason: str) -> None:
    (tmp_path / "test_x.py").write_text(source)
    done = run_suite(tmp_path)
    assert done.returncode != 0
    assert reason in done.stdout
    assert "UNSTABLE" not in done.stdout


def test_failures_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(BROKEN)
    assert run_suite(tmp_path).returncode != 0
    (tmp_path / "test_x.py").write_text("def test_fine(): pass\n")
    assert run_suite(tmp_path).returncode == 0
