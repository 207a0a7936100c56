"""Garbage collection of commands that work for long."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from corral._cli import command_types

PROGRAM = """
import gc
from corral._cli.command_types import enable_gc
gc.disable()
enable_gc()
print(gc.isenabled(), gc.get_freeze_count() > 1000)
"""


def test_what_was_loaded_is_not_examined_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


def test_commands_enable_it_in_one_way() -> None:
    sources = Path(command_types.__file__).parent.rglob("*.py")
    found = [path.name for path in sources if re.search(r"\bgc\.enable\(", path.read_text())]
    assert found == ["command_types.py"]
