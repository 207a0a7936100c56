"""Follow a durable run to its end in this process: report its events, ask its questions, and send
the messages of ``notify``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from corral._engine import open_questions, query, service
from corral._engine.dbos import database
from corral._engine.open_questions import RunQuestion
from corral._engine.payloads import PipelineOutput
from corral._engine.run_result import (
    PipelineResult,
    result_from_output,
    text_of,
    waiting_result,
)
from corral._pipelines import events, node_kinds
from corral._pipelines.events import RunEvent
from corral._pipelines.execution.interviewers import Interviewer
from corral._pipelines.scheduler.commands import Answer

QUIET = 0.5
"""Seconds without an event until it is checked whether the run waits only for people."""
QUESTION_POLL = 0.1
"""Seconds between two checks for questions, if there is an interviewer to answer them."""
SHORT_TIMEOUT = 300.0
"""Seconds: if a question expires sooner, the follower waits for its timeout, although there is no
interviewer."""

OnEvent: TypeAlias = Callable[[RunEvent], None]
OnStart: TypeAlias = Callable[[str, Path], None]
"""Called with the id and the directory of the run."""


@dataclass(frozen=True, kw_only=True)
class FollowOptions:
    """How a run is followed."""

    db: str | None = None
    """Its database."""
    interviewer: Interviewer | None = None
    """Answers its questions; None: there is no one to ask."""
    on_event: OnEvent | None = None
    on_start: OnStart | None = None
    restarts_jobs: bool = False
    """Of ``service.resume``."""

    def started(self, run: str, folder: Path) -> None:
        if self.on_start is not None:
            self.on_start(run, folder)


async def follow_to_end(
    run: str, folder: Path, follow: FollowOptions, *, reported: int = 0
) -> PipelineResult:
    """The result of the run when it has ended, or when it only waits for people."""
    follow.started(run, folder)
    ended = await RunFollower(run, follow, reported=reported).run_to_end()
    if ended is not None:
        return result_from_output(run, ended, folder)
    asked = await open_questions.questions(run, db=follow.db)
    return waiting_result(await query.show(run, db=follow.db), asked)


class RunFollower:
    """Follows a run to its end: reports its events, and asks its questions. ``reported``: the
    number of the last event that the caller knows."""

    def __init__(self, run: str, follow: FollowOptions, *, reported: int = 0) -> None:
        self._run, self._db, self._interviewer = run, follow.db, follow.interviewer
        self._on_event, self._reported, self._is_new = follow.on_event, reported, reported == 0
        self._open: set[str] = set()
        """Open questions of the run itself. Those of nested runs are read from the database."""
        self._working: set[str] = set()
        self._within: set[str] = set()
        self._asking: dict[asyncio.Task[Answer], RunQuestion] = {}
        self._answered_ids: set[str] = set()
        self._quiet = 0

    async def run_to_end(self) -> PipelineOutput | None:
        """The output of the run; None if it waits only for people and has no interviewer."""
        stream = query.follow(self._run, db=self._db)
        coming = _next_event(stream)
        try:
            while True:
                looks = bool(self._open or self._within)
                pause = QUIET if self._interviewer is None else QUESTION_POLL
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
                        return await service.wait(self._run, db=self._db)
                    coming = _next_event(stream)
                    self._on_event_received(event)
                elif looks and self._interviewer is not None:
                    await self._ask(self._interviewer)
                elif looks and await self._waits_for_people():
                    return None
        finally:
            tasks: list[asyncio.Task[Any]] = [coming, *self._asking]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
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
            case events.StepStarted(kind=kind, visit=visit):
                node_kind = node_kinds.find(kind)
                if node_kind.works and not node_kind.waits:  # a process works while it runs
                    self._working.add(visit)
            case events.StepCompleted(visit=visit) | events.StepFailed(visit=visit):
                self._working.discard(visit)
                self._within.discard(visit)
                self._open.discard(visit)
            case events.InterviewStarted(visit=visit):
                self._open.add(visit)
                # A question about a conflict: the visit of its node does not work meanwhile.
                self._working.discard(visit.rpartition(".")[0])
            case events.InterviewCompleted(visit=visit) | events.InterviewTimeout(visit=visit):
                self._open.discard(visit)
            case _:
                pass

    async def _ask(self, interviewer: Interviewer) -> None:
        """Ask questions that are open, and stop asking those that no longer are."""
        found = await open_questions.questions(self._run, db=self._db)
        asked = {each.id: each for each in found if not each.answered}
        known = {each.id for each in self._asking.values()} | self._answered_ids
        for task, each in self._asking.items():
            if each.id not in asked:
                task.cancel()
        for each in asked.values():
            if each.id not in known:
                self._asking[asyncio.create_task(interviewer.ask(each.question))] = each

    async def _answered(self, task: asyncio.Task[Answer]) -> None:
        asked = self._asking.pop(task)
        if task.cancelled():  # another process has answered it
            return
        self._answered_ids.add(asked.id)
        with contextlib.suppress(open_questions.NoSuchQuestion):  # another process was faster
            await open_questions.send_answer(asked, task.result(), db=self._db)

    async def _waits_for_people(self) -> bool:
        if self._working:
            return False
        asked = await open_questions.questions(self._run, db=self._db)
        timeouts = [each.question.timeout for each in asked]
        lasts = all(timeout is None or timeout > SHORT_TIMEOUT for timeout in timeouts)
        if not asked or not lasts or any(each.answered for each in asked):
            return False
        if not self._within:
            return True
        # Between two nodes of a nested run there is a moment in which none runs.
        self._quiet = (
            0 if await open_questions.has_running_nodes(self._run, db=self._db) else self._quiet + 1
        )
        return self._quiet > 1


def _next_event(stream: AsyncIterator[events.RunEvent]) -> asyncio.Task[events.RunEvent | None]:
    async def coming() -> events.RunEvent | None:
        return await anext(stream, None)

    return asyncio.create_task(coming())


async def send_notification(
    options: Mapping[str, object] | None,
    result: PipelineResult,
    cwd: str,
    db: str | None,
    *,
    is_workflow: bool,
) -> None:
    """Send the message of ``notify``, if it is wanted: the questions that the run waits for, or its
    end."""
    target, on = (options or {}).get("notify"), (options or {}).get("notify_on")
    if not isinstance(target, str):
        return
    from corral._publishing import notify

    shown = None if db is None else database.find(db).shown
    facts = notify.RunFacts(kind="pipeline", id=result.run, cwd=cwd, db=shown)
    messages = [
        notify.asked_message(
            facts,
            "question",
            notify.Asked(
                request_id=question.id,
                text=question.text,
                choices=tuple(choice.key for choice in question.choices),
                deadline=question.deadline,
            ),
        )
        for question in result.questions
    ]
    if result.status != "waiting":
        ended = notify.RunEnd(
            status=result.status,
            text=text_of(result, is_workflow=is_workflow),
            error=result.reason if result.status != "success" else "",
            cost_usd=result.cost_usd or None,
            tokens=result.tokens or None,
        )
        messages = [notify.end_message(facts, ended)]
    await notify.send_messages(target, on, messages)
