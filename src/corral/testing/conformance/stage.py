"""Where a scenario of the conformance kit is played: a folder, a scripted model, an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.agents.spec import AgentSpec, Probe
from corral.result import Result
from corral.sessions.api import run
from corral.testing.model_server.request import Request
from corral.testing.model_server.script import Source
from corral.testing.model_server.server import Lane, ModelServer

KEY = "check-needs-no-key-0123456789"


class Skipped(Exception):
    """The agent does not claim this."""


class Failed(Exception):
    """The scenario failed; the message says what happened instead."""


class Stage:
    """One scenario's folder, scripted model and options."""

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        server: ModelServer,
        cwd: Path,
        *,
        options: dict[str, Any],
        scenario: str,
    ) -> None:
        self.name = name
        self.agent = agent
        self.cwd = cwd.resolve()
        self._server = server
        self._options = options
        self._scenario = "".join(c if c.isalnum() else "-" for c in f"{name}-{scenario}")
        self._lanes = 0
        self.lane: Lane | None = None

    @property
    def probe(self) -> Probe:
        if self.agent.probe is None:
            raise Skipped("its model cannot be scripted: the record names no probe")
        return self.agent.probe.in_folder(str(self.cwd))

    @property
    def requests(self) -> list[Request]:
        """What the model was sent, a client's side calls left out."""
        sent = self.lane.requests if self.lane else []
        return [request for request in sent if not request.aside]

    def scripted(self, script: Source, **options: Any) -> dict[str, Any]:
        """The options of a run against this script."""
        probe = self.probe
        self._lanes += 1
        self.lane = self._server.lane(f"{self._scenario}-{self._lanes}", script)
        env = {probe.url_env: self.lane.url, probe.key_env: KEY}
        return {
            "cwd": self.cwd,
            "model": probe.model,
            "timeout": 120,
            "keep": False,
            **self._options,
            **options,
            "env": {**self._options.get("env", {}), **env},
        }

    async def run(self, prompt: str, script: Source, **options: Any) -> Result:
        return await run(self.name, prompt, **self.scripted(script, **options))
