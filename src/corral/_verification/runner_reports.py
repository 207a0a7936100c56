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
    "pytest": re.compile(r"(?:^|[\s/])(?:pytest|py\.test)(?:\s|$)"),
    "unittest": re.compile(r"\s-m\s?unittest(?:\s|$)"),
    "cargo": re.compile(r"(?:^|[\s/])cargo (?:test|t)(?:\s|$)"),
}
"""How a command names its runner."""
_NUMBERS = {
    "pytest": (
        re.compile(r"\b(\d{1,9}) passed\b"),
        re.compile(r"\b(\d{1,9}) (?:skipped|deselected|xfailed)\b"),
    ),
    "unittest": (
        re.compile(r"^Ran (\d{1,9}) tests? in ", re.MULTILINE),
        re.compile(r"\b(?:skipped|expected failures)=(\d{1,9})\b"),
    ),
    "cargo": (
        re.compile(r"^test result: ok\. (\d{1,9}) passed", re.MULTILINE),
        re.compile(r"; (\d{1,9}) ignored;"),
    ),
}
_ONLY_LOOKS = re.compile(
    r"--(?:collect-only|co|version|help|fixtures|markers|list|no-run)\b|\s-h\b"
)


def runner_of(command: str) -> str | None:
    """The known test runner that a command starts."""
    if _ONLY_LOOKS.search(command):
        return None
    return next((name for name, words in _WORDS.items() if words.search(command)), None)


def read_counts(runner: str, output: str) -> TestCounts:
    passed, skipped = (sum(map(int, numbers.findall(output))) for numbers in _NUMBERS[runner])
    if runner == "unittest":
        passed = max(0, passed - skipped)
    return TestCounts(passed, skipped)
