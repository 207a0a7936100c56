"""Where ``make`` installs the real agents, and which of them it installs on demand only."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from corral._agents import registry
from corral._system import programs

MANAGED = os.environ.get("CORRAL_HOME") or str(Path(__file__).parents[2] / ".cache" / "corral")
"""Read before any test changes CORRAL_HOME."""

MARKS = {"gemini-acp": "gemini_cli", "gemini-cli": "gemini_cli", "claude-acp": "claude_acp"}
"""The marks of agents whose mark is not the first word of their name."""


def managed(name: str) -> str:
    """The path of this agent's program, whether it is installed or not."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("CORRAL_HOME", MANAGED)
        return str(programs.managed_program(registry.find(name)))


def mark_of(name: str) -> str:
    return MARKS.get(name, name.partition("-")[0])


_MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text()
_MORE = re.findall(r"^AGENTS_HERE = .*,\$\(AGENTS\)\),(.*)\)$", _MAKEFILE, re.MULTILINE)[0].split()
ON_DEMAND = {mark_of(registry.find(name).name): registry.find(name).name for name in _MORE}
"""Mark → agent, for the agents that only ``make test-all`` installs."""


def installed(name: str) -> str:
    """The path of this agent's program. Skips the test without Node; fails it if the agent is not
    installed, and if the test does not have the mark of the agent."""
    from support.fast_selection import require

    require("real_agent")
    program = managed(name)
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip(f"npm is missing: the real {registry.find(name).title} cannot be installed")
    if not os.path.exists(program):
        pytest.fail(f"{name} is not installed at {program}: run `make agents`")
    return program
