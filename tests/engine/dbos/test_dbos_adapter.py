"""What the library does in the process of an executor, and what happens while that closes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.descriptors import free_descriptors

from corral._engine.dbos import adapter, client
from corral._engine.dbos.database import WorkflowSubmission, find, prepare
from corral.errors import ProcessFailed
from corral.values import Json

QUEUE = "some-queue"


def test_a_workflow_that_calls_the_closing_library_stays_pending(tmp_path: Path) -> None:
    database = find(str(tmp_path / "runs.db"))
    prepare(database)
    started = asyncio.Event()
    calls: list[str] = []

    async def workflow(_payload: dict[str, Json]) -> Json:
        async def action() -> Json:
            calls.append("step")
            return None

        started.set()
        adapter.stop_workflows()
        try:
            return await adapter.step("late", action)
        finally:
            calls.append("end")

    async def main() -> None:
        with client.connect(database) as connected:
            connected.register_queue(QUEUE, poll=0.05)
            adapter.launch(
                database.url,
                executor="one",
                workflows={"w": (workflow, 3)},
                queues=[QUEUE],
                poll=0.05,
            )
            try:
                connected.submit(
                    WorkflowSubmission(name="w", id="some-id", queue=QUEUE, payload={})
                )
                await asyncio.wait_for(started.wait(), 60)
                while "end" not in calls:
                    await asyncio.sleep(0.01)
            finally:
                await asyncio.to_thread(adapter.close)
            info = connected.get_workflow("some-id")
        assert info is not None
        assert info.state == "running"

    asyncio.run(main())
    assert calls == ["end"]


@pytest.mark.timeout(60)
def test_a_launch_without_descriptors_fails_instead_of_waiting(tmp_path: Path) -> None:
    """The library would wait for ever for its second event loop."""
    database = find(str(tmp_path / "runs.db"))
    prepare(database)

    async def main() -> None:
        try:
            with free_descriptors(1), pytest.raises(ProcessFailed, match="event loop"):
                adapter.launch(database.url, executor="one", workflows={}, queues=[], poll=0.05)
        finally:
            await asyncio.to_thread(adapter.close)

    asyncio.run(main())
