"""Runs the test suite in parallel; a test that failed runs once more, alone.

    python tools/run_suite.py [--deep-part [N]] [PYTEST ARGUMENT ...]

Many tests start real processes, and two cores have five workers: a test can fail because the
machine was busy. So up to ``MOST_RETRIED`` failed tests run again, one after another, on a machine
that does nothing else. A test that fails again fails the suite. A test that passes then is listed
as unstable and should be fixed. More failures, a collection error or an interruption fail at once.

``--deep-part`` runs one of ``PARTS`` parts of the tests marked ``deep``, and first those that
failed the last time, or for which there was no time. A part runs every tenth time, so its failure
is seldom that of the newest commits: it is reported, and fails the run if the test fails again the
next time. Which part is the next one is kept in
``STATE``, outside of the checkout: as many runs as there are parts run all of them. On a new
machine the number of commits decides. Tests that may take longer than ten minutes are run by
``make test-all`` only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

MOST_RETRIED = 5
SOME_TESTS_FAILED = 1  # pytest's exit code
NO_TESTS = 5  # pytest's exit code
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
NO_TIME = Path(".pytest_cache/v/corral/no_time")
"""The tests that were not started because the time of the part was over."""
PART_SECONDS = 540
PARTS = 10
STATE = Path(os.environ.get("CORRAL_DEEP_TESTS", "~/.cache/corral-deep-tests.json")).expanduser()


class DeepTests(TypedDict):
    """What is kept of earlier runs of the deep tests."""

    oldest_first: list[int]
    """The parts that ran, the newest last."""
    failed: list[str]
    late: list[str]
    """Tests for which there was no time."""


def pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failed_tests() -> list[str]:
    return tests_in(LAST_FAILED)


def tests_in(file: Path) -> list[str]:
    return sorted(json.loads(file.read_bytes())) if file.exists() else []


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


def earlier_runs() -> DeepTests:
    try:
        kept = json.loads(STATE.read_bytes())
        return DeepTests(
            oldest_first=kept["oldest_first"], failed=kept["failed"], late=kept["late"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return DeepTests(oldest_first=[], failed=[], late=[])


def next_part(oldest_first: list[int], commits: int) -> int:
    """The part that has never run, or not for the longest time."""
    never = [part for part in range(PARTS) if part not in oldest_first]
    return never[commits % len(never)] if never else oldest_first[0]


def number_of_commits() -> int:
    command = ["git", "rev-list", "--count", "HEAD"]
    count = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return int(count or 0)


def run_deep_part(arguments: list[str], part: int | None) -> int:
    earlier = earlier_runs()
    if part is None:
        part = next_part(earlier["oldest_first"], number_of_commits())
    first = [f"--also={test}" for test in (*earlier["failed"], *earlier["late"])]
    print(f"Part {part} of 0 to {PARTS - 1} of the deep tests,", end=" ")
    print(f"and first {len(first)} of earlier runs.", flush=True)
    NO_TIME.unlink(missing_ok=True)
    part_of = ["-m", "deep", f"--part={part}/{PARTS}", f"--within={PART_SECONDS}"]
    code = run([*part_of, *first, *arguments])
    failed = failed_tests()
    parts = [old for old in earlier["oldest_first"] if old != part]
    kept = DeepTests(oldest_first=[*parts, part], failed=failed, late=tests_in(NO_TIME))
    STATE.parent.mkdir(parents=True, exist_ok=True)
    STATE.write_text(json.dumps(kept))
    if code != SOME_TESTS_FAILED or not failed:
        return 0 if code == NO_TESTS else code
    print("DEEP TESTS THAT FAILED (they are the first the next time):", *failed, sep="\n  ")
    return SOME_TESTS_FAILED if {*failed} & {*earlier["failed"]} else 0


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] != "--deep-part":
        return run(arguments)
    has_number = len(arguments) > 1 and arguments[1].isdecimal()
    part = int(arguments[1]) if has_number else None
    return run_deep_part(arguments[2:] if has_number else arguments[1:], part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
