"""Turn the recorded output of an agent into the events of a run.

``NAME.ndjson``, ``NAME.stderr`` and ``NAME.exit.json`` are stdout, stderr and exit code.
"""

from __future__ import annotations

import json
from pathlib import Path

from support.stream_checks import check_stream

from corral._agents import registry
from corral._agents.spec import AgentSpec, TurnEnding, stream_transport
from corral._protocol.ndjson import NdjsonStream
from corral._sessions.event_normalizer import EventNormalizer
from corral.events import Done, Event, Init, to_json
from corral.options import RunOptions

RECORDINGS = Path(__file__).parents[1] / "recordings"


def recording_names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".exit.json") for path in folder.glob("*.exit.json"))


def read_recording(agent: AgentSpec, folder: Path, name: str, size: int = 1 << 20) -> list[Event]:
    """The recording's events, its output read ``size`` bytes at a time."""
    ended = json.loads((folder / f"{name}.exit.json").read_bytes())["exit"]
    output = (folder / f"{name}.ndjson").read_bytes()
    stderr_file = folder / f"{name}.stderr"
    transport = stream_transport(agent)
    stream = NdjsonStream(transport.frames, transport.translator())
    version = agent.package.tested
    init = Init(run_id="r", agent=agent.name, cwd="/workspace", agent_version=version)
    guard = EventNormalizer(init, started=0.0)
    events: list[Event] = []
    for start in range(0, len(output), size):
        events += guard.take(stream.receive(output[start : start + size]), 0.0)
    events += guard.take(stream.end(), 0.0)
    code = ended if isinstance(ended, int) else -9  # it hung, and was killed
    ending = TurnEnding(
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stderr=stderr_file.read_text("utf-8") if stderr_file.exists() else "",
        finish=guard.finish,
        answered=guard.answered,
        run=RunOptions(agent=agent.name),
    )
    return check_stream([*events, *guard.close(0.0, agent.explain(ending))])


def done_of(events: list[Event]) -> Done:
    done = events[-1]
    assert isinstance(done, Done)
    return done


def as_lines(events: list[Event]) -> str:
    return "".join(to_json(event).decode() + "\n" for event in events)


class Recordings:
    """The recordings of one agent, in the folder that has the first word of its name."""

    def __init__(self, agent: str) -> None:
        self.agent = registry.find(agent)
        self.folder = RECORDINGS / agent.partition("-")[0]
        self.names = recording_names(self.folder)

    def __call__(self, name: str, size: int = 1 << 20) -> list[Event]:
        return read_recording(self.agent, self.folder, name, size)

    def done(self, name: str) -> Done:
        return done_of(self(name))
