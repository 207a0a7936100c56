"""The command line of the scripted agent that speaks the ACP."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "scripted_acp.py"


def agent(*arguments: str) -> str:
    """The command line of the scripted agent, which is all its name."""
    return shlex.join([sys.executable, "-S", "-E", str(PROGRAM), "--acp", *arguments])
