"""Follow a durable run to its end: report its events, ask people its questions.

Returns when the run has ended, or when it waits only for people and nobody is here to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from corral.durable import open_questions, query, service
from corral.durable.open_questions import OpenQuestion
from corral.durable.payloads import RunOutput
from corral.pipelines import events, node_kinds
from corral.pipelines.execution.interviewers import Interviewer
from corral.pipelines.scheduler.commands import Answer

QUIET = 0.5
"""Seconds without an event until it is checked whether the run waits only for people."""
POLL = 0.1
"""Seconds between two checks for questions, if somebody is here to answer."""
SHORT_TIMEOUT = 300.0
"""Seconds: if a question expires sooner, its timeout is awaited though nobody can answer."""


def _is_busy(name: str) -> bool:
    """Whether a process works on nodes of this kind while they run."""
    kind = node_kinds.find(name)
    return kind.works and not kind.waits


class RunFollower:
    """``people`` None: nobody can be asked. ``reported``: events up to this number are known."""

    def __init__(
        self,
        run: str,
        *,
        db: str | None = None,
        people: Interviewer | None = None,
        on_event: Callable[[events.RunEvent], None] | None = None,
        reported: int = 0,
    ) -> None:
        self.run, self.db, self.people = run, db, people
        self._on_event, self._reported, self._is_new = on_event, reported, reported == 0
        self._open: set[str] = set()
        """Open questions of the run itself. Those of nested runs are read from the database."""
        self._working: set[str] = set()
        self._within: set[str] = set()
        self._asking: dict[asyncio.Task[Answer], OpenQuestion] = {}
        self._answered_ids: set[str] = set()
        self._quiet = 0

    async def run_to_end(self) -> RunOutput | None:
        """The output of the run; None if it waits for people."""
        stream = query.follow(self.run, db=self.db)
        coming = _next_event(stream)
        try:
            while True:
                looks = bool(self._open or self._within)
                pause = QUIET if self.people is None else POLL
                ready, _ = await asyncio.wait(
                    {coming, *self._asking},
                    timeout=pause if looks else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in self._asking if task in ready]:
                    await self._answered(task)
                if coming in ready:
                    event = coming.result()
                    if event is None:
                        return await service.wait(self.run, db=self.db)
                    coming = _next_event(stream)
                    self._on_event_received(event)
                elif looks and self.people is not None:
                    await self._ask(self.people)
                elif looks and await self._waits_for_people():
                    return None
        finally:
            await _cancel_all([coming, *self._asking])
            await stream.aclose()

    def _on_event_received(self, event: events.RunEvent) -> None:
        self._quiet = 0
        of_the_run = isinstance(event, events.PipelineEvent)
        self._is_new = self._is_new or (of_the_run and event.seq > self._reported)
        if self._on_event is not None and self._is_new:
            self._on_event(event)
        self._is_new = self._is_new or (of_the_run and event.seq >= self._reported)
        match event:
            case events.StepStarted(kind=kind, visit=visit) if kind in node_kinds.CHILD_KINDS:
                self._within.add(visit)
            case events.StepStarted(kind=kind, visit=visit) if _is_busy(kind):
                self._working.add(visit)
            case events.StepCompleted(visit=visit) | events.StepFailed(visit=visit):
                self._working.discard(visit)
                self._within.discard(visit)
                self._open.discard(visit)
            case events.InterviewStarted(visit=visit):
                self._open.add(visit)
            case events.InterviewCompleted(visit=visit) | events.InterviewTimeout(visit=visit):
                self._open.discard(visit)
            case _:
                pass

    async def _ask(self, people: Interviewer) -> None:
        """Ask questions that are open, and stop asking those that no longer are."""
        found = await open_questions.questions(self.run, db=self.db)
        asked = {each.id: each for each in found if not each.answered}
        known = {each.id for each in self._asking.values()} | self._answered_ids
        for task, each in self._asking.items():
            if each.id not in asked:
                task.cancel()
        for each in asked.values():
            if each.id not in known:
                self._asking[asyncio.create_task(_ask_one(people, each))] = each

    async def _answered(self, task: asyncio.Task[Answer]) -> None:
        asked = self._asking.pop(task)
        if task.cancelled():  # it was answered by somebody else
            return
        self._answered_ids.add(asked.id)
        with contextlib.suppress(open_questions.NoSuchQuestion):  # somebody else was faster
            await open_questions.send_answer(asked, task.result(), db=self.db)

    async def _waits_for_people(self) -> bool:
        if self._working:
            return False
        asked = await open_questions.questions(self.run, db=self.db)
        limits = [each.question.timeout for each in asked]
        lasts = all(limit is None or limit > SHORT_TIMEOUT for limit in limits)
        if not asked or not lasts:
            return False
        if not self._within:
            return True
        # Between two nodes of a nested run there is a moment in which none runs.
        self._quiet = (
            0 if await open_questions.has_running_nodes(self.run, db=self.db) else self._quiet + 1
        )
        return self._quiet > 1


async def _ask_one(people: Interviewer, asked: OpenQuestion) -> Answer:
    return await people.ask(asked.question)


def _next_event(stream: AsyncIterator[events.RunEvent]) -> asyncio.Task[events.RunEvent | None]:
    async def coming() -> events.RunEvent | None:
        return await anext(stream, None)

    return asyncio.create_task(coming())


async def _cancel_all(tasks: Sequence[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
