"""The real Cline, led to a scripted model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import managed
from support.real_agents import KEY, RealAgent, forget_keys

from corral.options import RunKwargs
from corral.testing import ModelServer


class Cline(RealAgent):
    agent = "cline-acp"
    default_options: ClassVar[RunKwargs] = {"model": "scripted"}

    def env(self, url: str) -> dict[str, str]:
        return {"CLINE_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"}


@pytest.fixture
def cline(
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Cline:
    forget_keys("cline-acp", monkeypatch)
    return Cline(managed("cline-acp"), model_server, workspace, request.node.nodeid)
