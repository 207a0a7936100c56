"""The real Claude Code, led to a scripted model of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import installed
from support.real_agents import KEY, RealAgent

from corral.options import RunKwargs
from corral.testing import ModelServer

__all__ = ["KEY", "MODEL", "Claude"]

MODEL = "claude-sonnet-5"


class Claude(RealAgent):
    agent = "claude"
    default_options: ClassVar[RunKwargs] = {"model": MODEL, "timeout": 60, "retries": 1}

    def env(self, url: str) -> dict[str, str]:
        return {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "CLAUDE_", "AWS_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def claude_program() -> str:
    return installed("claude")


@pytest.fixture
def claude(
    claude_program: str,
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
) -> Claude:
    return Claude(claude_program, model_server, workspace, request.node.nodeid)
