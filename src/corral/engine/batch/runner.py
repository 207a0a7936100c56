"""What runs the tasks of a batch: this process, in memory; or the durable queue (``queue``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from corral.core.spending import Raise
from corral.engine.batch.tasks import BatchTask
from corral.engine.node_runner import NodeRunner
from corral.errors import ConfigError
from corral.pipelines.execution.handlers import NodeResources
from corral.pipelines.graph import Graph
from corral.pipelines.scheduler.commands import RunNode
from corral.pipelines.scheduler.outcome import Outcome

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
            graph=graph, run_id=name, resources=resources, workspace=workspace, budget=budget
        )
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
            running = self._runner.run(visit_of(task), on_retry=lambda _retrying: None)
            self._tasks[asyncio.create_task(running)] = task.id

    def add_budget(self, more: Raise) -> None:
        """Raise the limits of the batch by these amounts. Raises ``ConfigError``."""
        if self.budget is None:
            raise ConfigError("the batch has no budget")
        self.budget.raise_limits(more)

    async def finished(self) -> list[tuple[str, Outcome]]:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        return [(self._tasks.pop(task), task.result()) for task in done]
