"""Names that examples of docstrings use without defining them, with their types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corral
from corral import agents, errors, models, options, policy, providers, testing, workflows
from corral.pipelines import events


@dataclass
class Review:
    problems: list[str]


def weather(city: str) -> str:
    """A tool."""
    return city


action: policy.Action
answer: models.Generation[str]
client: models.Client
controls: Callable[[agents.Grants, options.RunOptions], agents.AgentControls]
encode: Any
ending: agents.TurnEnding
event: events.RunEvent
explain: Callable[[agents.TurnEnding], errors.CorralError | None]
failure: Any
files: list[str]
first: str
fix: Any
flow: workflows.Flow
folder: Path
grants: agents.Grants
launch: Any
message: models.Message
model: testing.ModelServer
one: corral.Session
place: agents.LaunchContext
provider: providers.ResponseProvider
read_ticket: Callable[[str], str]
report: corral.BatchReport[Any]
request: models.Request
result: corral.Result[str]
run_events: list[events.RunEvent]
run_policy: corral.Policy
second: str
session: corral.Session
spec: models.ToolSpec
tmp_path: Path
token: str
translator: Any
transport: agents.StreamTransport
two: corral.Session
vendor_event: corral.events.Event
wire: models.Wire
