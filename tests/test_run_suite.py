"""What ``make test`` runs: the suite in parallel, then up to five failed tests alone. What
``.ci/run`` runs of the deep tests: one part after another, and again what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_suite import PARTS, next_part

pytestmark = pytest.mark.whole_program

RUN_SUITE = Path(__file__).parents[1] / "tools" / "run_suite.py"
# Fails in a worker of pytest-xdist and passes alone.
UNSTABLE = "import os\ndef test_unstable(): assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
BROKEN = "def test_broken(): assert False\n"
MANY_UNSTABLE = """import os, pytest
@pytest.mark.parametrize("n", range(6))
def test_unstable(n): assert 'PYTEST_XDIST_WORKER' not in os.environ
"""


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = deep\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
    environment["CORRAL_DEEP_TESTS"] = str(folder / "state" / "deep.json")
    return subprocess.run(
        [sys.executable, str(RUN_SUITE), *arguments, "-p", "xdist"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.deep
def test_a_test_that_passes_alone_is_listed_as_unstable(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(UNSTABLE)
    done = run_suite(tmp_path)
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith(
        "UNSTABLE (failed in parallel, passed alone):\n  test_x.py::test_unstable"
    )


@pytest.mark.deep
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


@pytest.mark.deep
def test_failures_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(BROKEN)
    assert run_suite(tmp_path).returncode != 0
    (tmp_path / "test_x.py").write_text("def test_fine(): pass\n")
    assert run_suite(tmp_path).returncode == 0


# The options of tests/conftest.py. The test ``test_N`` is part N.
DEEP_CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--part")
    parser.addoption("--also", action="append", default=[])
    parser.addoption("--within")
def pytest_collection_modifyitems(config, items):
    test = "test_" + config.getoption("part").split("/")[0]
    items[:] = [i for i in items if i.name == test or i.nodeid in config.getoption("also")]
"""
DEEP = "import pytest\npytestmark = pytest.mark.deep\n"
DEEP += "".join(f"def test_{n}(): assert {n} != 3\n" for n in range(10))


def test_as_many_runs_as_there_are_parts_run_all_deep_tests() -> None:
    ran: list[int] = []
    for number in range(PARTS):
        ran.append(next_part(ran, commits=37 * number))
    assert sorted(ran) == [*range(PARTS)]
    assert next_part(ran, commits=5) == ran[0]


@pytest.mark.deep
def test_what_failed_runs_first_the_next_time_and_fails_the_run_if_it_fails_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(DEEP_CONFTEST)
    (tmp_path / "test_x.py").write_text(DEEP)
    done = run_suite(tmp_path, "--deep-part", "3", "-n", "0")
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith("(they are the first the next time):\n  test_x.py::test_3")
    done = run_suite(tmp_path, "--deep-part", "-v", "-n", "0")
    assert done.returncode != 0
    assert "and first 1 of earlier runs" in done.stdout
    assert "::test_3 FAILED" in done.stdout
    (tmp_path / "test_x.py").write_text(DEEP.replace("3 != 3", "3 != 4"))
    assert run_suite(tmp_path, "--deep-part", "4").returncode == 0
    assert json.loads((tmp_path / "state" / "deep.json").read_bytes())["failed"] == []


@pytest.mark.deep
def test_a_test_for_which_there_is_no_time_is_kept_for_the_next_run(tmp_path: Path) -> None:
    test = "tests/test_run_suite.py::test_as_many_runs_as_there_are_parts_run_all_deep_tests"
    words = ["-m", "pytest", "-q", "-n", "0", "-o", f"cache_dir={tmp_path}", "--within=-1", test]
    done = subprocess.run(
        [sys.executable, *words], cwd=RUN_SUITE.parents[1], capture_output=True, text=True
    )
    assert "1 skipped" in done.stdout
    assert json.loads((tmp_path / "v" / "corral" / "no_time").read_bytes()) == [test]
