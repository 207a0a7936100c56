"""A durable run, seen through by somebody who waits: its events as they come, people asked.

Ends with the run, or where it waits for nobody but people and there is none to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from corral.durable import open_questions, service
from corral.durable.open_questions import OpenQuestion
from corral.durable.payloads import RunOutput
from corral.pipelines import events as happened
from corral.pipelines import node_kinds
from corral.pipelines.execution.interviewers import Interviewer
from corral.pipelines.scheduler.commands import Answer

QUIET = 0.5
"""Seconds without an event until it is looked whether only people are waited for."""
LOOK = 0.1
"""Seconds between two looks for questions, where there is somebody to answer."""
PATIENCE = 300.0
"""Seconds: a question that expires sooner is waited out, though nobody is here to answer."""


def _is_busy(name: str) -> bool:
    """Whether a process works on nodes of this kind while they run."""
    kind = node_kinds.find(name)
    return kind.works and not kind.waits


class RunFollower:
    """``people`` None: nobody can be asked here. ``told``: events up to this number are known."""

    def __init__(
        self,
        run: str,
        *,
        db: str | None = None,
        people: Interviewer | None = None,
        on_event: Callable[[happened.RunEvent], None] | None = None,
        told: int = 0,
    ) -> None:
        self.run, self.db, self.people = run, db, people
        self._on_event, self._told, self._is_new = on_event, told, told == 0
        self._open: set[str] = set()
        """Questions of the run itself. Of those within it, the database is asked."""
        self._working: set[str] = set()
        self._within: set[str] = set()
        self._asking: dict[asyncio.Task[Answer], OpenQuestion] = {}
        self._said: set[str] = set()
        self._quiet = 0

    async def run_to_end(self) -> RunOutput | None:
        """What it came to; None where it waits for people."""
        events = service.follow(self.run, db=self.db)
        coming = _next(events)
        try:
            while True:
                looks = bool(self._open or self._within)
                pause = QUIET if self.people is None else LOOK
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
                    coming = _next(events)
                    self._seen(event)
                elif looks and self.people is not None:
                    await self._ask(self.people)
                elif looks and await self._waits_for_people():
                    return None
        finally:
            await _ended([coming, *self._asking])
            await events.aclose()

    def _seen(self, event: happened.RunEvent) -> None:
        self._quiet = 0
        of_the_run = isinstance(event, happened.PipelineEvent)
        self._is_new = self._is_new or (of_the_run and event.seq > self._told)
        if self._on_event is not None and self._is_new:
            self._on_event(event)
        self._is_new = self._is_new or (of_the_run and event.seq >= self._told)
        match event:
            case happened.StepStarted(kind=kind, visit=visit) if kind in node_kinds.CHILD_KINDS:
                self._within.add(visit)
            case happened.StepStarted(kind=kind, visit=visit) if _is_busy(kind):
                self._working.add(visit)
            case happened.StepCompleted(visit=visit) | happened.StepFailed(visit=visit):
                self._working.discard(visit)
                self._within.discard(visit)
                self._open.discard(visit)
            case happened.InterviewStarted(visit=visit):
                self._open.add(visit)
            case happened.InterviewCompleted(visit=visit) | happened.InterviewTimeout(visit=visit):
                self._open.discard(visit)
            case _:
                pass

    async def _ask(self, people: Interviewer) -> None:
        """Ask what is open by now, and leave off what is not open any more."""
        found = await open_questions.questions(self.run, db=self.db)
        asked = {each.id: each for each in found if not each.answered}
        known = {each.id for each in self._asking.values()} | self._said
        for task, each in self._asking.items():
            if each.id not in asked:
                task.cancel()
        for each in asked.values():
            if each.id not in known:
                self._asking[asyncio.create_task(_asked(people, each))] = each

    async def _answered(self, task: asyncio.Task[Answer]) -> None:
        asked = self._asking.pop(task)
        if task.cancelled():  # it was answered elsewhere
            return
        self._said.add(asked.id)
        with contextlib.suppress(service.NotAsked):  # somebody else was faster
            await service.answer(asked.run, task.result(), question=asked.question.id, db=self.db)

    async def _waits_for_people(self) -> bool:
        if self._working:
            return False
        asked = await open_questions.questions(self.run, db=self.db)
        limits = [each.question.timeout for each in asked]
        lasts = all(limit is None or limit > PATIENCE for limit in limits)
        if not asked or not lasts:
            return False
        if not self._within:
            return True
        # Between two nodes of a run within there is a moment in which nobody works.
        self._quiet = 0 if await open_questions.works(self.run, db=self.db) else self._quiet + 1
        return self._quiet > 1


async def _asked(people: Interviewer, asked: OpenQuestion) -> Answer:
    return await people.ask(asked.question)


def _next(events: AsyncIterator[happened.RunEvent]) -> asyncio.Task[happened.RunEvent | None]:
    async def coming() -> happened.RunEvent | None:
        return await anext(events, None)

    return asyncio.create_task(coming())


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
