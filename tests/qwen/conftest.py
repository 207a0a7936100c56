"""The real Qwen Code, led to a scripted model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import managed
from support.real_agents import KEY, RealAgent, forget_keys, seed

from corral.options import RunKwargs
from corral.testing import ModelServer

__all__ = ["seed"]


class Qwen(RealAgent):
    agent = "qwen-cli"
    default_options: ClassVar[RunKwargs] = {"model": "scripted", "timeout": 120}

    def env(self, url: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"}


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys("qwen-cli", monkeypatch)


@pytest.fixture
def qwen(model_server: ModelServer, workspace: Path, request: pytest.FixtureRequest) -> Qwen:
    return Qwen(managed("qwen-cli"), model_server, workspace, request.node.nodeid)
