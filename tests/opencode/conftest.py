"""The real OpenCode, led to a scripted model of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import pytest

from corral import agents
from corral.io import programs
from corral.keywords import Options
from corral.testing import Lane, ModelServer, Request, Turn

AGENT = agents.find("opencode")
MANAGED = os.environ.get("CORRAL_HOME") or str(Path(__file__).parents[2] / ".cache" / "corral")
"""Where ``make`` put the agents. Read before any test moves CORRAL_HOME."""
KEY = "canary-key-0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AGENT.env_family:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def opencode_program() -> str:
    """Missing npm skips; a missing install beside it fails."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("npm is missing: the real OpenCode cannot be installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRAL_HOME", MANAGED)
        program = programs.managed_program(AGENT)
    if not program.exists():
        pytest.fail(f"OpenCode is not installed at {program}: run `make agents`")
    return str(program)


class OpenCode:
    def __init__(self, program: str, server: ModelServer, workspace: Path, name: str) -> None:
        self.program = program
        self.server = server
        self.workspace = workspace
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
            "model": "custom/scripted",
            "program": self.program,
            "timeout": 90,
            **options,
            "env": {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{self.lane.url}/v1"},
        }
        return whole


@pytest.fixture
def opencode(
    opencode_program: str,
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
) -> OpenCode:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return OpenCode(opencode_program, model_server, workspace, name)
