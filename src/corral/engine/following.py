"""A durable run, seen through by somebody who waits: its events as they come, people asked.

Ends with the run, or where it waits for nobody but people and there is none to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from corral.engine import doors
from corral.engine.journal import Closed
from corral.pipelines import events as happened
from corral.pipelines.graph import Graph
from corral.pipelines.orders import Answer, Question
from corral.pipelines.people import Interviewer

QUIET = 0.7
"""Seconds without an event, while only people are waited for, until that is believed: between
the end of one node and the beginning of the next there is a moment too."""
LOOK = 0.1
"""Seconds between two looks whether a question can be answered."""
PATIENCE = 300.0
"""Seconds: a question that expires sooner is waited out, though nobody is here to answer."""
IDLE = {"wait.human", "parallel", "start", "exit", "conditional"}
"""Kinds at which nobody works."""


class Following:
    """``people`` None: nobody can be asked here. ``told``: so many of its events are known."""

    def __init__(
        self,
        run: str,
        graph: Graph,
        *,
        db: str | None = None,
        people: Interviewer | None = None,
        on_event: Callable[[happened.RunEvent], None] | None = None,
        told: int = 0,
    ) -> None:
        self.run, self.graph, self.db = run, graph, db
        self.people, self._on_event, self._told = people, on_event, told
        self.open: dict[str, str] = {}
        """Questions, and their nodes."""
        self._working: set[str] = set()
        self._asking: dict[asyncio.Task[Answer], str] = {}
        self._said: set[str] = set()

    async def whole(self) -> Closed | None:
        """What it came to; None where it waits for people."""
        events = doors.follow(self.run, db=self.db)
        coming = _next(events)
        try:
            while True:
                waits = self._waits_for_people()
                unasked = await self._ask_the_rest()
                ready, _ = await asyncio.wait(
                    {coming, *self._asking},
                    timeout=QUIET if waits else LOOK if unasked else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not ready and waits and await self.questions():
                    return None
                for task in [task for task in self._asking if task in ready]:
                    await self._answered(task)
                if coming in ready:
                    event = coming.result()
                    if event is None:
                        return await doors.wait(self.run, db=self.db)
                    coming = _next(events)
                    await self._seen(event)
        finally:
            await _ended([coming, *self._asking])
            await events.aclose()

    async def questions(self) -> Sequence[Question]:
        return await doors.questions(self.run, db=self.db)

    async def _seen(self, event: happened.RunEvent) -> None:
        self._told -= 1
        if self._on_event is not None and self._told < 0:
            self._on_event(event)
        match event:
            case happened.StepStarted() if event.kind not in IDLE:
                self._working.add(event.visit)
            case happened.StepCompleted() | happened.StepFailed():
                self._working.discard(event.visit)
                self._close(event.visit)
            case happened.InterviewStarted():
                self.open[event.visit] = event.node or ""
            case happened.InterviewCompleted() | happened.InterviewTimeout():
                self._close(event.visit)
            case _:
                pass

    async def _ask_the_rest(self) -> bool:
        """Ask what can be answered by now. Whether some question cannot be yet: the plan, which
        we follow ourselves, is ahead of the run."""
        if self.people is None:
            return False
        unasked = self.open.keys() - self._asking.values() - self._said
        for question in await self.questions() if unasked else ():
            if question.id in unasked:
                task = asyncio.create_task(_asked(self.people, question))
                self._asking[task] = question.id
                unasked = unasked - {question.id}
        return bool(unasked)

    async def _answered(self, task: asyncio.Task[Answer]) -> None:
        known = self._asking.pop(task)
        if task.cancelled():  # it was answered elsewhere
            return
        self._said.add(known)
        with contextlib.suppress(doors.NotAsked):  # somebody else was faster
            await doors.answer(self.run, task.result(), question=known, db=self.db)

    def _close(self, known: str) -> None:
        self.open.pop(known, None)
        for task, asked in self._asking.items():
            if asked == known:
                task.cancel()

    def _waits_for_people(self) -> bool:
        if self._working or not self.open or self.people is not None:
            return False
        return all(self._lasts(node) for node in self.open.values())

    def _lasts(self, node: str) -> bool:
        asked = self.graph.nodes.get(node)
        if asked is None:
            return True
        timeout = asked.seconds("human.timeout")
        timeout = asked.seconds("timeout") if timeout is None else timeout
        return timeout is None or timeout > PATIENCE


def _next(events: AsyncIterator[happened.RunEvent]) -> asyncio.Task[happened.RunEvent | None]:
    async def coming() -> happened.RunEvent | None:
        return await anext(events, None)

    return asyncio.ensure_future(coming())


async def _asked(people: Interviewer, question: Question) -> Answer:
    return await people.ask(question)


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
