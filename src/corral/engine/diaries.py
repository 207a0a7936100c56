"""The agents' own events, read from the run folder as they are written, where it is at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.engine import workspaces
from corral.engine.replay import Replay
from corral.pipelines import events
from corral.pipelines.events import PipelineEvent, RunEvent, StepCompleted, StepFailed
from corral.pipelines.folder import EVENTS, RunFolder


class Diaries:
    """Of all visits of a run; each is read on where it was left."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._folder = RunFolder(workspaces.folder_here(replay.begun.setting.folder))
        self._read: dict[str, int] = {}
        """Visit → bytes read of its diary; a visit that has ended is not in it any more."""
        self._over: set[str] = set()

    def between(self, news: Iterable[PipelineEvent]) -> Iterator[RunEvent]:
        """The run's news, with what the agents said where it belongs: after their node began,
        before it ended."""
        for event in news:
            if isinstance(event, StepCompleted | StepFailed):
                yield from self._rest(event.visit)
                self._over.add(event.visit)
            yield event
        for visit in list(self._replay.visits):
            if visit not in self._over:
                yield from self._rest(visit)

    def _rest(self, visit: str) -> Iterator[RunEvent]:
        order = self._replay.visits.get(visit)
        if order is None or visit in self._over:
            return
        for line in self._lines(visit, self._folder.place(visit) / EVENTS):
            try:
                event = events.from_json(line)
            except msgspec.MsgspecError:
                continue  # of another version of corral
            yield event if event.node == order.node else replace(event, node=order.node)

    def _lines(self, visit: str, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(visit, 0))
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._read[visit] = self._read.get(visit, 0) + whole
        return data[:whole].splitlines()
