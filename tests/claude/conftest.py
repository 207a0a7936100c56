"""The real Claude Code, led to a scripted model of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import pytest

import corral
from corral import agents
from corral.events import Event
from corral.io import programs
from corral.keywords import Options
from corral.sessions.broker import Asker
from corral.testing import Lane, ModelServer, Request, Turn

AGENT = agents.find("claude")
MANAGED = os.environ.get("CORRAL_HOME") or str(Path(__file__).parents[2] / ".cache" / "corral")
"""Where ``make`` put the agents. Read before any test moves CORRAL_HOME."""
KEY = "canary-key-0123456789abcdef"
MODEL = "claude-sonnet-5"


@pytest.fixture(autouse=True)
def _no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "CLAUDE_", "AWS_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def claude_program() -> str:
    """Missing npm skips; a missing install beside it fails."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("npm is missing: the real Claude Code cannot be installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRAL_HOME", MANAGED)
        program = programs.managed_program(AGENT)
    if not program.exists():
        pytest.fail(f"Claude Code is not installed at {program}: run `make agents`")
    return str(program)


class Claude:
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

    def options(
        self, script: Sequence[Turn] | Callable[[Request], Turn], **options: Unpack[Options]
    ) -> Options:
        """The options that lead a run to this script."""
        self._count += 1
        self.lane = self.server.lane(f"{self._name}-{self._count}", script)
        whole: Options = {
            "cwd": self.workspace,
            "model": MODEL,
            "program": self.program,
            "timeout": 60,
            "retries": 1,
            **options,
            "env": {
                "ANTHROPIC_API_KEY": KEY,
                "ANTHROPIC_BASE_URL": self.lane.url,
                **options.get("env", {}),
            },
        }
        return whole

    async def events(
        self,
        script: Sequence[Turn] | Callable[[Request], Turn],
        prompt: str = "do it",
        ask: Asker | None = None,
        **options: Unpack[Options],
    ) -> list[Event]:
        whole = self.options(script, **options)
        async with corral.session("claude", ask=ask, **whole) as session:
            return [event async for event in session.prompt(prompt)]

    async def run(
        self,
        script: Sequence[Turn] | Callable[[Request], Turn],
        prompt: str = "do it",
        ask: Asker | None = None,
        **options: Unpack[Options],
    ) -> corral.Result:
        return corral.fold(await self.events(script, prompt, ask, **options))


@pytest.fixture
def claude(
    claude_program: str,
    model_server: ModelServer,
    workspace: Path,
    request: pytest.FixtureRequest,
) -> Claude:
    name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return Claude(claude_program, model_server, workspace, name)
