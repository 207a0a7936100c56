"""Turn the recorded output of an agent into the events of a run.

``NAME.ndjson``, ``NAME.stderr`` and ``NAME.exit.json`` are stdout, stderr and exit code.
"""

from __future__ import annotations

import json
from pathlib import Path

from support.stream_checks import check_stream

from corral._agents import registry
from corral._agents.spec import TurnEnding, stream_transport
from corral._protocol.ndjson import NdjsonStream, RawEvent
from corral._sessions.event_normalizer import EventNormalizer
from corral.events import Event, Init
from corral.options import RunOptions

RECORDINGS = Path(__file__).parents[1] / "recordings"


class Recordings:
    """The recordings of one agent, in the folder that has the first word of its name."""

    def __init__(self, agent: str) -> None:
        self.agent = registry.find(agent)
        self.folder = RECORDINGS / agent.partition("-")[0]
        files = self.folder.glob("*.exit.json")
        self.names = sorted(path.name.removesuffix(".exit.json") for path in files)

    def __call__(self, name: str, size: int = 1 << 20) -> list[Event]:
        """The recording's events, its output read ``size`` bytes at a time."""
        ended = json.loads((self.folder / f"{name}.exit.json").read_bytes())["exit"]
        code = ended if isinstance(ended, int) else -9  # it hung, and was killed
        output = b"".join(self.lines(name))
        stderr_file = self.folder / f"{name}.stderr"
        stderr = stderr_file.read_text("utf-8") if stderr_file.exists() else ""
        read = self.agent.read_stderr or (lambda _: None)
        stream = self.stream()
        version = self.agent.package.tested
        init = Init(run_id="r", agent=self.agent.name, cwd="/workspace", agent_version=version)
        guard = EventNormalizer(init, started=0.0)
        events: list[Event] = []
        for start in range(0, len(output), size):
            events += guard.take(stream.receive(output[start : start + size]), 0.0)
        logged = [item for line in stderr.splitlines() if (item := read(line)) is not None]
        events += guard.take([*stream.end(), *logged], 0.0)
        ending = TurnEnding(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stderr=stderr,
            finish=guard.finish,
            answered=guard.answered,
            run=RunOptions(agent=self.agent.name),
        )
        return check_stream([*events, *guard.close(0.0, self.agent.explain(ending))])

    def lines(self, name: str) -> list[bytes]:
        """What the program wrote, without the lines that were sent to it (``{">>": ...}``)."""
        lines = (self.folder / f"{name}.ndjson").read_bytes().splitlines(keepends=True)
        return [line for line in lines if not line.startswith(b'{">>"')]

    def stream(self) -> NdjsonStream:
        transport = stream_transport(self.agent)
        return NdjsonStream(transport.frames, transport.translator())

    def read(self, *frames: object) -> list[RawEvent]:
        """What these lines of the program are read as."""
        return list(self.stream().receive(b"".join(json.dumps(f).encode() + b"\n" for f in frames)))
