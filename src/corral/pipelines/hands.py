"""One order carried out in this process: a node with its attempts, a question put to people."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from corral.events import Event
from corral.pipelines import attempts, handlers, work
from corral.pipelines.events import RunEvent, StepRetrying
from corral.pipelines.folder import RunFolder
from corral.pipelines.graph import Graph, Node
from corral.pipelines.handlers import Desk, Work
from corral.pipelines.orders import Answered, Ended, Expired, Message, Question, Visit
from corral.pipelines.outcome import Outcome, failed
from corral.pipelines.people import Interviewer

NOWHERE = Path(os.devnull)


class Hands:
    def __init__(
        self,
        graph: Graph,
        run_id: str,
        *,
        desk: Desk,
        people: Interviewer | None,
        workspace: Path,
        folder: RunFolder | None,
        say: Callable[[RunEvent], None],
        retrying: Callable[[StepRetrying], None],
    ) -> None:
        self._graph = graph
        self._run_id = run_id
        self._desk = desk
        self._people = people
        self._workspace = workspace
        self._folder = folder
        self._say = say
        self._retrying = retrying
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()

    async def visit(self, visit: Visit) -> Message:
        node = self._graph.nodes[visit.node]
        root, place, keeps = self._place(visit, node)
        attempt, earlier = 1, None
        while True:
            outcome = await work.attempt(
                Work(
                    run_id=self._run_id,
                    graph=self._graph,
                    node=node,
                    visit=visit,
                    attempt=attempt,
                    folder=place,
                    run_folder=root,
                    workspace=self._workspace,
                    desk=self._desk,
                    emit=partial(self._agent_said, visit.node),
                    keeps=keeps,
                )
            )
            outcome = attempts.with_spent(outcome, earlier)
            then = attempts.after(self._graph, node, outcome, attempt, visit.id)
            if isinstance(then, Outcome):
                return Ended(id=visit.id, outcome=then)
            self._retrying(
                StepRetrying(
                    node=visit.node,
                    visit=visit.id,
                    attempt=attempt,
                    delay=then.seconds,
                    reason=outcome.failure_reason,
                )
            )
            await asyncio.sleep(then.seconds)
            earlier = outcome
            attempt += 1

    def _place(self, visit: Visit, node: Node) -> tuple[Path, Path, bool]:
        """The run's folder, the visit's, and whether anything is to be written there."""
        folder = self._folder
        if folder is None:
            if not handlers.is_ours(handlers.for_node(node)):  # which makes what it needs
                return NOWHERE, NOWHERE, False
            if self._scratch is None:
                self._scratch = tempfile.TemporaryDirectory(prefix="corral-run-")
            folder = RunFolder(self._scratch.name)
        return folder.path, folder.stage(visit.id, visit.node), True

    async def ask(self, question: Question) -> Message:
        if self._people is None:
            if question.timeout is None:
                reason = f"there is nobody to ask: {question.text}"
                return Ended(id=question.id, outcome=failed(reason, retryable=False))
            await asyncio.sleep(question.timeout)
            return Expired(id=question.id)
        limit = asyncio.timeout(question.timeout)
        try:
            async with limit:
                return Answered(id=question.id, answer=await self._people.ask(question))
        except TimeoutError:
            if not limit.expired():
                raise
            return Expired(id=question.id)

    def _agent_said(self, node: str, event: Event) -> None:
        self._say(event if event.node == node else replace(event, node=node))
