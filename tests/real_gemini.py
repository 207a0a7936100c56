"""The real Gemini CLI, as the tests drive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import corral
from corral.events import Event
from corral.keywords import Options
from corral.result import Result, fold
from corral.testing import Lane, ModelServer, Request, Turn

KEY = "canary-key-0123456789abcdef"


class Gemini:
    """The real CLI, led to a scripted model of its own."""

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
        env = {
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": self.lane.url,
            **options.get("env", {}),
        }
        whole: Options = {
            "cwd": self.workspace,
            "model": "gemini-2.5-flash",
            "program": self.program,
            "timeout": 90,
            "retries": 1,
            **options,
            "env": env,
        }
        return whole

    async def events(
        self,
        script: Sequence[Turn] | Callable[[Request], Turn],
        prompt: str = "do it",
        **options: Unpack[Options],
    ) -> list[Event]:
        async with corral.session("gemini-cli", **self.options(script, **options)) as session:
            return [event async for event in session.prompt(prompt)]

    async def run(
        self,
        script: Sequence[Turn] | Callable[[Request], Turn],
        prompt: str = "do it",
        **options: Unpack[Options],
    ) -> Result:
        return fold(await self.events(script, prompt, **options))
