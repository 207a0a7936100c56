"""End the processes that tests started, also when pytest itself is killed.

Workers, agent hosts and Postgres outlive the process that started them by design. A test ends
them, but a test that is killed cannot.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

MARK = "TESTED_BY"
WATCHER = Path(__file__).parents[1] / "programs" / "cleanup_watcher.py"


def start_watcher() -> None:
    """Mark all processes that this process starts from now on, and start the watcher, which kills
    them when this process ends. It learns that from the end of a pipe."""
    if not sys.platform.startswith("linux"):
        return
    os.environ[MARK] = secrets.token_hex(8)
    reader, _writer = os.pipe()
    subprocess.run(
        [sys.executable, "-I", "-S", WATCHER, f"{MARK}={os.environ[MARK]}"],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    os.close(reader)
