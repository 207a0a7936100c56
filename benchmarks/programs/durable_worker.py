"""A worker whose nodes log when they start, and wait: ``durable_worker.py DB CONCURRENCY``."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from corral._engine.worker import worker
from corral._pipelines.execution import handlers
from corral._pipelines.scheduler.outcome import Outcome


@handlers.handler("wait")
async def wait(work: Any) -> Outcome:
    with Path(work.node.text("log")).open("a") as file:
        file.write(f"{time.time()}\n")
    await asyncio.sleep(float(work.node.attrs["seconds"]))
    return Outcome()


def ready(_executor: object) -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    options = worker.WorkerOptions(concurrency=int(sys.argv[2]), drain=0.0)
    worker.serve(sys.argv[1], options, on_ready=ready)
