"""The real Copilot CLI, led to a scripted model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from support.installed_agents import managed
from support.real_agents import KEY, RealAgent, forget_keys, seed

from corral.options import RunKwargs
from corral.testing import ModelServer

__all__ = ["seed"]


class Copilot(RealAgent):
    agent = "copilot-cli"
    default_options: ClassVar[RunKwargs] = {"model": "scripted"}
    cache: Path

    def env(self, url: str) -> dict[str, str]:
        return {
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_CACHE_HOME": str(self.cache),
        }


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_keys("copilot-cli", monkeypatch)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it unpacks itself, 235 MB and two seconds: once a worker."""
    return tmp_path_factory.mktemp("copilot-cache")


@pytest.fixture
def copilot(
    model_server: ModelServer, workspace: Path, unpacked: Path, request: pytest.FixtureRequest
) -> Copilot:
    made = Copilot(managed("copilot-cli"), model_server, workspace, request.node.nodeid)
    made.cache = unpacked
    return made
