"""Without descriptors an event loop cannot start, and the error says so."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import resource, sys
from corral.errors import ProcessFailed
from corral._system import threads

async def work() -> None:
    pass

def open_fds():
    import os
    return len(os.listdir("/proc/self/fd"))

for spare in (0, 1, 2):
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_fds() - 1 + spare, HARD))
    try:
        threads.run_event_loop(work())
    except ProcessFailed as error:
        print(error.message, error.hint)
    resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))
threads.run_event_loop(work())
"""


def test_too_few_descriptors_are_one_error_without_a_traceback(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM.replace("HARD", str(hard))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    line = "cannot start an event loop: Too many open files too many open files: raise"
    assert done.stdout.count(line) == 3
