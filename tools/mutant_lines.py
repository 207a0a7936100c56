"""Which lines a process runs for which test, for ``tools/mutants.py``.

Every Python process of the tests calls ``measure`` when it starts (a ``.pth`` file of their
environment). The context of what it runs is the test that the variable PYTEST_CURRENT_TEST names:
pytest sets it, and processes of tests inherit it. So the lines that run in a command or a worker
count, too.
"""

from __future__ import annotations

import os
import sys
from typing import Any

VARIABLE = "PYTEST_CURRENT_TEST"


def measure(configuration: str) -> None:
    """Record the lines that this process runs."""
    import coverage

    os.environ["COVERAGE_PROCESS_START"] = configuration
    coverage.process_startup()
    del os.environ["COVERAGE_PROCESS_START"]

    def switch(value: str) -> None:
        running = coverage.Coverage.current()
        if running is not None and value.startswith("tests/"):
            running.switch_context(value.rpartition(" ")[0])

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.putenv" and arguments[0] == VARIABLE.encode():
            switch(os.fsdecode(arguments[1]))

    switch(os.environ.get(VARIABLE, ""))
    sys.addaudithook(hook)
