"""What a scenario of the conformance kit uses: a folder, a scripted model, an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from corral.agents.spec import AgentSpec, Probe
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.sessions.api import run
from corral.sessions.permissions import Asker
from corral.testing.model_server.request import Request
from corral.testing.model_server.script import Source
from corral.testing.model_server.server import Lane, ModelServer

KEY = "check-needs-no-key-0123456789"


class Skipped(Exception):
    """The agent does not claim to support this."""


class Failed(Exception):
    """The scenario failed. The message describes what happened."""


class Stage:
    """One scenario's folder, scripted model and options."""

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        server: ModelServer,
        cwd: Path,
        *,
        options: RunKwargs,
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
            raise Skipped("its model cannot be scripted: the spec has no probe")
        return self.agent.probe.in_folder(str(self.cwd))

    @property
    def requests(self) -> list[Request]:
        """The requests to the model, without the agent's calls outside the conversation."""
        sent = self.lane.requests if self.lane else []
        return [request for request in sent if not request.aside]

    def scripted(self, script: Source, **options: Unpack[RunKwargs]) -> RunKwargs:
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

    async def run(
        self,
        prompt: str,
        script: Source,
        *,
        ask: Asker | None = None,
        tools: Sequence[Callable[..., object]] = (),
        output: type[object] | None = None,
        **options: Unpack[RunKwargs],
    ) -> Result:
        given = self.scripted(script, **options)
        return await run(self.name, prompt, ask=ask, tools=tools, output=output, **given)
