"""Runs one test file with pytest and writes what happened to the last line of stdout.

It runs in the sandbox of the work that is checked, with the Python of the work (3.8 or newer). It
gets the test file, the folder of the work, pytest's root folder and further folders of modules as
arguments, and a word on stdin. The last line is the word and how many tests passed and failed; a
file that cannot be loaded has no tests. Without that line the tests did not come to their end,
whatever the exit code says: a module that is imported may exit at any time.
"""

from __future__ import annotations

import os
import sys

NO_PYTEST = 97


def main(test_file: str, work: str, root: str, *folders: str) -> int:
    word = sys.stdin.readline().strip()
    # A module in the work may be named like one of pytest.
    sys.path[:] = [path for path in sys.path if path not in ("", work)]
    try:
        import pytest
    except ImportError:
        return NO_PYTEST
    outcomes = {"passed": 0, "failed": 0}

    class Counter:
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self) -> None:
            # Not earlier: pytest looks for plugins in all folders of the path.
            sys.path[:0] = [*folders, work]

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            outcomes["failed"] += report.failed
            outcomes["passed"] += report.passed and report.when == "call"

    settings = os.path.join(os.path.dirname(test_file), "pytest.ini")
    options = ["-q", "-p", "no:cacheprovider", "-c", settings, "--rootdir", root]
    code = pytest.main([*options, test_file], plugins=[Counter()])
    stdout = sys.__stdout__ or sys.stdout
    stdout.write(f"\n{word} {outcomes['passed']} {outcomes['failed']}\n")
    stdout.flush()
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
