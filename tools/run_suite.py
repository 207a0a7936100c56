"""Runs the test suite in parallel; a test that failed runs once more, alone.

    python tools/run_suite.py [PYTEST ARGUMENT ...]

Many tests start real processes, and two cores have five workers: a test can fail because the
machine was busy. So up to ``MOST_RETRIED`` failed tests run again, one after another, on a machine
that does nothing else. A test that fails again fails the suite. A test that passes then is listed
as unstable and should be fixed. More failures, a collection error or an interruption fail at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST_RETRIED = 5
SOME_TESTS_FAILED = 1  # pytest's exit code
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failed_tests() -> list[str]:
    return sorted(json.loads(LAST_FAILED.read_bytes())) if LAST_FAILED.exists() else []


def run(arguments: list[str]) -> int:
    LAST_FAILED.unlink(missing_ok=True)  # failures of an earlier run do not count
    code = pytest("-n", "auto", "--dist", "worksteal", *arguments)
    failed = failed_tests()
    if code != SOME_TESTS_FAILED or not 0 < len(failed) <= MOST_RETRIED:
        return code
    print(f"\nRunning {len(failed)} failed test(s) once more, alone.", flush=True)
    code = pytest("-n", "0", "--last-failed", "--last-failed-no-failures=none", *arguments)
    if code == 0:
        print("UNSTABLE (failed in parallel, passed alone):", *failed, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
