"""Limits and node types are listed once: one that is added to its list, in memory, is found in
every place that has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("program", ["one_more_limit.py", "one_more_node_type.py"])
def test_one_more_of_a_list_is_found_everywhere(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
