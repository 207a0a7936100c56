"""What running processes say of their runs, as the view uses it. Blocking."""

from __future__ import annotations

import msgspec

from corral.view.records import Kind, Pending


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in progress."""

    id: str
    title: str = ""
    agent: str = ""
    model: str | None = None
    label: str | None = None
    db: str | None = None
    state: str = "running"
    until: float | None = None


class LiveProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has runs."""

    pid: int
    argv: tuple[str, ...] = ()


class LiveRuns(msgspec.Struct, kw_only=True):
    """The runs of all processes at one moment."""

    runs: dict[tuple[Kind, str], LiveRun] = {}
    processes: dict[tuple[Kind, str], LiveProcess] = {}
    pending: list[Pending] = []

    def pending_of(self, kind: Kind, id: str) -> list[Pending]:
        return [each for each in self.pending if (each.run_kind, each.run_id) == (kind, id)]

    @property
    def databases(self) -> set[str]:
        """The databases of running pipelines and batches."""
        return {run.db for run in self.runs.values() if run.db}


def read() -> LiveRuns:
    """Ask all processes."""
    return LiveRuns()
