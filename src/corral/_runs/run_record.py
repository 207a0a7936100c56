"""The record of a run: what a person has started, of whatever kind, or a part of that.

Runs are computed from what is stored (folders of sessions, run folders, the engine's tables,
comparisons, reviews, merge queues) and from what running processes say. Nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from corral import live
from corral._engine.dbos import database
from corral._engine.run_list import RunOverview, list_runs
from corral._publishing.records import LiveRun
from corral._system import threads
from corral.values import Cost, Usage

Kind: TypeAlias = Literal[
    "session", "pipeline", "workflow", "batch", "comparison", "review", "merge"
]
State: TypeAlias = Literal[
    "queued",
    "running",
    "waiting",
    "limited",
    "paused",
    "success",
    "failed",
    "cancelled",
    "interrupted",
]
"""``waiting``: for a person. ``limited``: by a rate limit. ``paused``: its budget is spent.
``interrupted``: its process is gone; it can be resumed."""
OPEN_STATES: frozenset[State] = frozenset(("queued", "running", "waiting", "limited", "paused"))
"""States of runs that have not ended, or that wait for a person."""
LIVE_STATES: Mapping[str, State] = {
    "waiting_permission": "waiting",
    "waiting_person": "waiting",
    "rate_limited": "limited",
    "paused": "paused",
}
"""What a process says of a run -> its state; another one is running."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run: what a person has started, or a part of that.

    ::

        for run in corral.runs.list_sync(state="waiting"):
            print(run.id, run.kind, run.title, run.needs)
    """

    id: str
    kind: Kind
    state: State
    title: str = ""
    """``--title``, else the first line of what the person wrote. No text that corral adds."""
    project: str = ""
    """The repository, else the folder, in which the person started it."""
    parent: str = ""
    """The run of which this one is a part."""
    place: str = ""
    """Where in the parent: a node's visit, a step, a task or an attempt."""
    reason: str = ""
    """Why it is not a success; empty for one that is."""
    code: str = ""
    """Of the error, as in ``corral docs errors``."""
    usage: Usage = Usage()
    cost: Cost = Cost()
    """Of it and its parts. Nothing of what a scripted model answered."""
    scripted: bool = False
    """Whether a scripted model answered, which costs nothing."""
    verdict: str = ""
    """Of its verification."""
    needs: int = 0
    """How many questions wait for a person."""
    started: float = 0.0
    """Seconds since the epoch, as all times."""
    ended: float | None = None
    updated: float = 0.0
    """When it was changed last."""
    tries: int = 1
    """How often it was started: more than once if it was resumed."""
    agent: str = ""
    model: str = ""
    label: str = ""
    folder: str = ""
    """What is stored of it; empty for one that is only in a database."""
    durable: bool = False
    """Whether it is in a database; ``db`` is that if it is not the default one."""
    db: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it runs, or waits."""
        return self.state in OPEN_STATES


class Sources(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Where runs are looked for."""

    db: str | None = None
    """If it is given, only this database counts."""
    text: str = ""
    """A text that the runs have: of sessions anywhere in the transcript."""
    live: dict[str, LiveRun] = {}
    """What running processes work on, by id."""

    @classmethod
    def read(cls, db: str | None = None, text: str = "") -> Sources:
        """As they are now. Blocking."""
        running = {run.id: run for run in live.runs() if run.state != "idle"}
        return cls(db=db, text=text, live=running)

    @cached_property
    def durable(self) -> list[RunOverview]:
        """The pipelines and workflows of the database. Blocks."""
        if not database.is_installed():
            return []
        return threads.blocking(list_runs(db=self.db, limit=None))

    def state_of(self, run: str) -> State | None:
        """What its process says; None if there is none."""
        found = self.live.get(run)
        return None if found is None else LIVE_STATES.get(found.state, "running")

    def needs_of(self, run: str) -> int:
        """Open requests of the run and of its parts."""
        return sum(
            len(each.pending)
            for each in self.live.values()
            if each.id == run or each.part_of.partition("/")[0].partition("#")[0] == run
        )


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A run with what its kind has besides.

    ::

        details = corral.runs.show_sync("last")
        print(details.run.state, details.parts)
    """

    run: Run
    content: Any
    """The turns of a session, the state of a pipeline or workflow, the report of a batch, the
    attempts of a comparison, the findings of a review, the entries of a merge queue."""
    lines: tuple[str, ...] = ()
    """The same as text."""
    diffs: tuple[str, ...] = ()
    """How each turn of a session changed files, where that is stored."""
    parts: tuple[Run, ...] = ()
