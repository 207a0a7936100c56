"""The real pi, led to a scripted model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import managed
from support.real_agents import KEY, RealAgent, forget_keys

from corral.options import RunKwargs
from corral.testing import ModelServer


class Pi(RealAgent):
    agent = "pi-cli"
    default_options: ClassVar[RunKwargs] = {"model": "scripted"}

    def env(self, url: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"}


@pytest.fixture
def pi(
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Pi:
    forget_keys("pi-cli", monkeypatch)
    return Pi(managed("pi-cli"), model_server, workspace, request.node.nodeid)
