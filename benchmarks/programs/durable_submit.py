"""Submit a run to the workers and wait for it: ``durable_submit.py DB COUNT SECONDS LOG``.
Prints how long it took."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time

from corral._engine import service
from corral._engine.payloads import RunConfig, RunInput
from corral._pipelines.graph import Edge, Graph, Node


async def main() -> None:
    db, count, seconds, log = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    names = [f"n{number}" for number in range(count)]
    nodes = {name: Node(name, {"type": "wait", "seconds": seconds, "log": log}) for name in names}
    nodes |= {
        "start": Node("start", {"type": "start"}),
        "fork": Node("fork", {"type": "parallel", "max_parallel": count}),
        "join": Node("join", {"type": "fan_in"}),
        "exit": Node("exit", {"type": "exit"}),
    }
    edges = [Edge("start", "fork"), Edge("join", "exit")]
    for name in names:
        edges += [Edge("fork", name), Edge(name, "join")]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(folder=f"{folder}/run", workspace=folder)
        run_input = RunInput(run_id="", graph=Graph("wait", {}, nodes, edges), config=config)
        run = await service.start(run_input, db=db, queue="default")
        closed = await service.wait(run, db=db, timeout=300)
    assert closed.status == "success", closed.reason
    print(json.dumps({"seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    asyncio.run(main())
