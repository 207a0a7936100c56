"""Scripts for a scripted model, and what the model was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable

from corral.testing import Call, Request, Turn, say


def steps(*calls: Call) -> list[Turn]:
    """A model that makes these calls, one per turn, and then says ``done``."""
    return [*(Turn(calls=[call]) for call in calls), say("done")]


def sent_json(requests: Iterable[Request]) -> str:
    """The bodies of all requests to the model, as one JSON text."""
    return json.dumps([request.body for request in requests], ensure_ascii=False)


def tool_results_json(request: Request) -> str:
    """The tool results so far, as one JSON text."""
    return json.dumps([result for _, result in request.tool_results], ensure_ascii=False)
