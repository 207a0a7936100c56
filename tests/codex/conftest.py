"""The real Codex, led to a scripted model of its own."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

import pytest
from codex.tools import KEY
from laws import lawful

import corral
from corral import agents
from corral.events import Event
from corral.io import programs
from corral.keywords import Options
from corral.result import Result, fold
from corral.testing import Lane, ModelServer, Request, Turn

MANAGED = os.environ.get("CORRAL_HOME") or str(Path(__file__).parents[2] / ".cache" / "corral")
"""Where ``make`` put the agents. Read before any test moves CORRAL_HOME."""


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in agents.find("codex").env_family:
        monkeypatch.delenv(name, raising=False)


def installed(name: str) -> str:
    """Missing npm skips; a missing install beside it fails."""
    agent = agents.find(name)
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip(f"npm is missing: the real {agent.title} cannot be installed")
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("CORRAL_HOME", MANAGED)
        program = programs.managed_program(agent)
    if not program.exists():
        pytest.fail(f"{agent.name} is not installed at {program}: run `make agents`")
    return str(program)


@pytest.fixture(scope="session")
def codex_program() -> str:
    return installed("codex")


class Codex:
    def __init__(self, program: str, server: ModelServer, workspace: Path, name: str) -> None:
        self.program = program
        self.server = server
        self.workspace = workspace
        self._name = name
        self._count = 0
        self.lane: Lane
        """Of the last conversation."""

    @property
    def requests(self) -> list[Request]:
        return self.lane.requests

    def options(self, script: Sequence[Turn], **options: Unpack[Options]) -> Options:
        """The options that lead a run to this script."""
        self._count += 1
        self.lane = self.server.lane(f"{self._name}-{self._count}", script)
        whole: Options = {
            "cwd": self.workspace,
            "model": "gpt-5.5",
            "program": self.program,
            "timeout": 90,
            "retries": 1,
            **options,
            "env": {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{self.lane.url}/v1"},
        }
        return whole

    async def events(self, script: Sequence[Turn], **options: Unpack[Options]) -> list[Event]:
        async with corral.session("codex", **self.options(script, **options)) as session:
            return lawful([event async for event in session.prompt("do it")])

    async def run(self, script: Sequence[Turn], **options: Unpack[Options]) -> Result:
        return fold(await self.events(script, **options))


@pytest.fixture
def codex(
    codex_program: str, model_server: ModelServer, workspace: Path, request: pytest.FixtureRequest
) -> Codex:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return Codex(codex_program, model_server, workspace, name)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Bound and never listened on: whoever connects is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
