"""Whatever the tests start ends with them, also when pytest itself is killed.

Engines, their workers and hosts outlive whoever started them by design, and so does a
Postgres; a test ends them, but a test that is killed ends nothing.
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
    """From now on what this process starts bears its mark. The cleanup_watcher waits for the end of
    a pipe whose other end is ours, so the kernel tells it."""
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
