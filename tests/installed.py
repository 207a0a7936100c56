"""The real agents on this machine: where ``make`` puts them, and which only on demand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corral import agents
from corral.io import programs

MANAGED = os.environ.get("CORRAL_HOME") or str(Path(__file__).parents[1] / ".cache" / "corral")
"""Read before any test moves CORRAL_HOME."""

ON_DEMAND = {"copilot": "copilot-cli"}
"""Mark → agent, of those that only ``make test AGENTS=all`` installs."""


def managed(name: str) -> str:
    """Where this agent's program is, once it is installed."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("CORRAL_HOME", MANAGED)
        return str(programs.managed_program(agents.find(name)))
