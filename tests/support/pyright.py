"""Pyright, as ``make check`` installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "pyright" / "node_modules" / "pyright" / "index.js"
LIMIT = 400
"""Seconds."""


def report(*words: str | Path, cwd: Path = ROOT, programs: Path | None = None) -> dict[str, Any]:
    """What pyright reports as JSON. ``programs``: the folder with the ``python`` that it asks for
    installed packages, of which ``--verifytypes`` knows no option."""
    if not PROGRAM.exists():
        pytest.skip("pyright is not installed: make check installs it")
    search = os.pathsep.join((str(programs or Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["node", PROGRAM, "--outputjson", *words],
        cwd=cwd,
        env={**os.environ, "PATH": search},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
