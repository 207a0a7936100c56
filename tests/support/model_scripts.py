"""Scripts for a scripted model, and what the model was sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from corral.testing import Call, Lane, ModelServer, Request, Turn, say

Script: TypeAlias = Sequence[Turn] | Callable[[Request], Turn]


class ModelClient:
    """An agent of a test: each of its conversations has its own lane of the model server."""

    def __init__(self, server: ModelServer, test_name: str) -> None:
        self.server = server
        self._test_name = "".join(c if c.isalnum() else "-" for c in test_name)
        self._count = 0
        self.lane: Lane
        """Of the last conversation."""

    def add_lane(self, script: Script) -> Lane:
        self._count += 1
        self.lane = self.server.lane(f"{self._test_name}-{self._count}", script)
        return self.lane

    @property
    def requests(self) -> list[Request]:
        """The requests of the last conversation."""
        return self.lane.requests

    @property
    def failures(self) -> list[str]:
        """Failures of the last script. The server is shared, so others are left out."""
        return [failure for failure in self.server.failures if self.lane.name in failure]


def steps(*calls: Call) -> list[Turn]:
    """A model that makes these calls, one per turn, and then says ``done``."""
    return [*(Turn(calls=[call]) for call in calls), say("done")]


def sent_json(requests: Iterable[Request]) -> str:
    """The bodies of all requests to the model, as one JSON text."""
    return json.dumps([request.body for request in requests], ensure_ascii=False)


def tool_results_json(request: Request) -> str:
    """The tool results so far, as one JSON text."""
    return json.dumps([result for _, result in request.tool_results], ensure_ascii=False)
