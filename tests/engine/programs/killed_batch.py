"""A batch that kills its process at the n-th moment; forked by ``fork_server.py``.

Moments are the writes to a journal, and the writes of results: before, within the line, and after.
With 0 the batch runs to its end, and the moments are counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import corral
from corral._engine.batch import api, results
from corral._engine.batch.results import BatchResult, line_of
from corral._engine.dbos import adapter
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.nodes import item
from corral._pipelines.scheduler.outcome import Outcome

folder, moment, poison = Path(), 0, ""
seen = 0


def is_time_to_die(name: str) -> bool:
    """Count a moment; returns whether this is the one at which the caller must kill the process."""
    global seen  # noqa: PLW0603
    seen += 1
    if seen != moment:
        return False
    (folder / "moment").write_text(name)
    return True


def die(name: str) -> None:
    if is_time_to_die(name):
        os.kill(os.getpid(), signal.SIGKILL)


class KilledOutputFile(results.OutputFile):
    def write(self, results: Iterable[BatchResult]) -> None:
        lines = list(results)
        if not lines:
            return
        die("before write")
        if is_time_to_die("half of a write"):
            data = b"".join(line_of(each) for each in lines)
            with self.path.open("ab") as file:
                file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(lines)
        die("after write")


async def work(work: NodeContext) -> Outcome:
    """Logs the task."""
    die("before the task")
    with (folder / "log").open("a") as file:
        file.write(f"{work.visit.id}\n")
    if work.visit.id == poison:
        os.kill(os.getpid(), signal.SIGKILL)
    die("after the task")
    return await item.item(work)


def run(place: str, count: int, at: int, in_order: bool, poisoned: str) -> None:
    global folder, moment, poison
    folder, moment, poison = Path(place), at, poisoned
    os.chdir(folder)
    asyncio.run(run_batch(count, in_order))


async def run_batch(count: int, in_order: bool) -> None:
    handlers.register("batch.item", work)
    adapter.watch = die
    setattr(api, "OutputFile", KilledOutputFile)  # noqa: B010
    report = await corral.batch(
        [{"id": f"t{n}"} for n in range(count)],
        "task {{id}}",
        simulate=True,
        results=folder / "r.jsonl",
        concurrency=3,
        in_order=in_order,
    )
    (folder / "moments").write_text(str(seen))
    (folder / "report").write_text(
        f"{report.succeeded} {report.failed} {[each.code for each in report.failures]}"
    )
