"""What runs the tasks of a batch: this process, in memory; or the durable queue (``queue``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from corral.durable.batch.tasks import BatchTask
from corral.errors import ConfigError
from corral.pipelines.execution.handlers import NodeResources
from corral.pipelines.execution.memory_runner import NodeRunner
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import Ended, RunNode
from corral.pipelines.scheduler.outcome import Outcome, failed

if TYPE_CHECKING:
    from corral.metering.budget import Budget

NODE = "item"
"""The id of the only node of a batch's graph."""


class Runner(Protocol):
    @property
    def budget(self) -> Budget | None:
        """What the model calls of all tasks together may use."""
        ...

    @property
    def window(self) -> int:
        """How many tasks may be submitted and not ended."""
        ...

    async def submit(self, tasks: Sequence[BatchTask]) -> None: ...

    async def finished(self) -> list[tuple[str, Outcome]]:
        """Outcomes of tasks that have ended, by task id; waits until there is one."""
        ...


def visit_of(task: BatchTask, round: int = 1) -> RunNode:
    return RunNode(id=task.id, node=NODE, number=round, context=task.fields)


class MemoryRunner:
    """A context manager: when it exits, all tasks that it started have ended."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        *,
        resources: NodeResources,
        workspace: Path,
        concurrency: int,
        budget: Budget | None = None,
    ) -> None:
        self.window = concurrency
        self.budget = budget
        self._resources = resources
        self._runner = NodeRunner(
            graph,
            name,
            resources=resources,
            interviewer=None,
            workspace=workspace,
            folder=None,
            on_event=lambda _event: None,
            on_retry=lambda _event: None,
        )
        self._runner.budget = budget
        self._tasks: dict[asyncio.Task[Outcome], str] = {}

    async def __aenter__(self) -> MemoryRunner:
        await self._resources.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._resources.__aexit__()
        self._runner.close()

    async def submit(self, tasks: Sequence[BatchTask]) -> None:
        for task in tasks:
            self._tasks[asyncio.create_task(self._run_task(task))] = task.id

    async def _run_task(self, task: BatchTask) -> Outcome:
        try:
            message = await self._runner.run_node(visit_of(task))
        except Exception as error:  # a bug or a full disk must fail only this task
            return failed(f"{type(error).__name__}: {error}".removesuffix(": "))
        return message.outcome if isinstance(message, Ended) else failed("the task did not end")

    def add_budget(
        self, *, cost: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> None:
        """Raise the limits of the batch by these amounts. Raises ``ConfigError``."""
        if self.budget is None:
            raise ConfigError("the batch has no budget")
        self.budget.add(cost=cost, tokens=tokens, calls=calls)

    async def finished(self) -> list[tuple[str, Outcome]]:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        return [(self._tasks.pop(task), task.result()) for task in done]
