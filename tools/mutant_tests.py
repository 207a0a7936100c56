"""A pytest plugin for the tests of ``tools/mutants.py``: it runs chosen tests in a given order, and
writes how each ended and how long it took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-tests", help="a JSON file: the ids of the tests to run, in order")
    parser.addoption("--results", help="a JSON file for the outcome and the seconds of each test")


def pytest_configure(config: pytest.Config) -> None:
    results = config.getoption("--results")
    if results and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(results)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--only-tests"):
        wanted: list[str] = json.loads(Path(config.getoption("--only-tests")).read_bytes())
        order = {name: number for number, name in enumerate(wanted)}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


class Results:
    """Writes how each test ended and how long it took."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds = self.tests.get(report.nodeid, ("passed", 0.0))
        if report.outcome != "passed" and outcome != "failed":
            outcome = report.outcome
        self.tests[report.nodeid] = outcome, seconds + report.duration

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.tests))
