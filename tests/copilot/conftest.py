"""The real Copilot CLI, led to a scripted model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import pytest
from installed import managed

from corral import agents
from corral.keywords import Options
from corral.testing import Lane, ModelServer, Request, Turn

AGENT = agents.find("copilot-cli")
KEY = "canary-key-0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AGENT.env_family:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it unpacks itself, 235 MB and two seconds: once a worker."""
    return tmp_path_factory.mktemp("copilot-cache")


class Copilot:
    def __init__(self, server: ModelServer, workspace: Path, cache: Path, name: str) -> None:
        self.server = server
        self.workspace = workspace
        self._cache = cache
        self._name = name
        self.lane: Lane

    @property
    def requests(self) -> list[Request]:
        return self.lane.requests

    def options(self, script: Sequence[Turn], **options: Unpack[Options]) -> Options:
        """The options that lead a run to this script."""
        self.lane = self.server.lane(self._name, script)
        whole: Options = {
            "cwd": self.workspace,
            "model": "scripted",
            "program": managed("copilot-cli"),
            "timeout": 90,
            **options,
            "env": {
                "COPILOT_PROVIDER_API_KEY": KEY,
                "COPILOT_PROVIDER_BASE_URL": f"{self.lane.url}/v1",
                "COPILOT_CACHE_HOME": str(self._cache),
            },
        }
        return whole


@pytest.fixture
def copilot(
    model_server: ModelServer, workspace: Path, unpacked: Path, request: pytest.FixtureRequest
) -> Copilot:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return Copilot(model_server, workspace, unpacked, name)
