"""The real Qwen Code, led to a scripted model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import pytest
from installed import managed

from corral import agents
from corral.keywords import Options
from corral.testing import Lane, ModelServer, Request, Turn

AGENT = agents.find("qwen-cli")


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AGENT.env_family:
        monkeypatch.delenv(name, raising=False)


class Qwen:
    def __init__(self, server: ModelServer, workspace: Path, name: str) -> None:
        self.server = server
        self.workspace = workspace
        self._name = name
        self.lane: Lane

    @property
    def requests(self) -> list[Request]:
        return self.lane.requests

    @property
    def failures(self) -> list[str]:
        """What was asked for against this script; the server is everybody's."""
        return [failure for failure in self.server.failures if self.lane.name in failure]

    def options(self, script: Sequence[Turn], **options: Unpack[Options]) -> Options:
        """The options that lead a run to this script."""
        self.lane = self.server.lane(self._name, script)
        whole: Options = {
            "cwd": self.workspace,
            "model": "scripted",
            "program": managed("qwen-cli"),
            "timeout": 120,
            **options,
            "env": {
                "OPENAI_API_KEY": "canary-key-0123456789abcdef",
                "OPENAI_BASE_URL": f"{self.lane.url}/v1",
            },
        }
        return whole


@pytest.fixture
def qwen(model_server: ModelServer, workspace: Path, request: pytest.FixtureRequest) -> Qwen:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return Qwen(model_server, workspace, name)
