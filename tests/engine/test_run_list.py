"""The list of runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys
from corral._engine import run_list
assert asyncio.run(run_list.list_runs(db=sys.argv[1])) == []
names = "dbos", "sqlalchemy", "corral._engine.worker", "corral._engine.query"
print([name for name in names if name in sys.modules])
"""


def test_a_list_loads_nothing_that_executes_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "x.db")], capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr
