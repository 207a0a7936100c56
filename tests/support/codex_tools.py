"""What the scripted model does through Codex."""

from __future__ import annotations

from pathlib import Path

from corral.agents.codex.policy import patch
from corral.testing import Call


def shell(command: str) -> Call:
    return Call("exec_command", {"cmd": command})


def write(path: str | Path) -> Call:
    return Call("apply_patch", {"input": patch(str(path), "written")})
