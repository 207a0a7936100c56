"""What a test runner reports in its output: how many tests passed, and how many were skipped.

The exit code alone says little. Code under test runs in the process of the runner: it may end that
process with 0 before any test, or skip the test that would fail. So a command that is known to run
tests must also report that some have passed, and no more skipped tests than before the run. Only
runners are known whose last lines have the numbers.
"""

from __future__ import annotations

import re

import msgspec


class TestCounts(msgspec.Struct, frozen=True):
    __test__ = False  # for pytest

    passed: int
    skipped: int = 0


_WORDS = {
    "pytest": r"(?:^|[\s/])(?:pytest|py\.test)(?:\s|$)",
    "unittest": r"\s-m\s*unittest(?:\s|$)",
    "cargo": r"(?:^|[\s/])cargo\s+(?:\S+\s+)*(?:test|t)(?:\s|$)",
}
"""How a command names its runner."""
_NUMBERS = {
    "pytest": (r"(\d+) passed\b", r"(\d+) (?:skipped|deselected|xfailed)\b"),
    "unittest": (r"^Ran (\d+) tests? in ", r"\b(?:skipped|expected failures)=(\d+)"),
    "cargo": (r"^test result: ok\. (\d+) passed", r"; (\d+) ignored;"),
}
_ONLY_LOOKS = r"--(?:collect-only|co|version|help|fixtures|markers|list|no-run)\b|\s-h\b"


def runner_of(command: str) -> str | None:
    """The known test runner that a command starts."""
    if re.search(_ONLY_LOOKS, command):
        return None
    return next((name for name, words in _WORDS.items() if re.search(words, command)), None)


def read_counts(runner: str, output: str) -> TestCounts:
    passed, skipped = (
        sum(map(int, re.findall(numbers, output, re.MULTILINE))) for numbers in _NUMBERS[runner]
    )
    if runner == "unittest":
        passed = max(0, passed - skipped)
    return TestCounts(passed, skipped)
