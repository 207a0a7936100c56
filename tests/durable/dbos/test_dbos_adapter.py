"""What the library does in the process of an executor, and what happens while that closes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from corral.durable.dbos import adapter, client
from corral.durable.dbos.database import find, prepare
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
                connected.submit(client.Submission(name="w", id="some-id", queue=QUEUE, payload={}))
                await asyncio.wait_for(started.wait(), 60)
                while "end" not in calls:
                    await asyncio.sleep(0.01)
            finally:
                await asyncio.to_thread(adapter.close)
            info = connected.get_workflow("some-id")
        assert info is not None
        assert info.state == "PENDING"

    asyncio.run(main())
    assert calls == ["end"]


def test_loops_of_the_library_that_corral_does_not_need_end_at_once(tmp_path: Path) -> None:
    from dbos._workflow_commands import WORKFLOW_TIMEOUT_THREAD_NAME

    database = find(str(tmp_path / "runs.db"))
    prepare(database)

    async def main() -> None:
        adapter.launch(database.url, executor="one", workflows={}, queues=[QUEUE], poll=0.05)
        try:
            started = threading.enumerate()
            assert not [each.name for each in started if "scheduler" in each.name]
            for each in started:
                if each.name == WORKFLOW_TIMEOUT_THREAD_NAME:
                    each.join(60)
                    assert not each.is_alive()
        finally:
            await asyncio.to_thread(adapter.close)

    asyncio.run(main())
