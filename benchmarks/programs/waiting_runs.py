"""Start runs that wait for a person, and leave them: ``waiting_runs.py DB COUNT``."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile

from corral._engine import process_engine, run_list, service
from corral._engine.payloads import RunConfig, RunInput
from corral._pipelines import dot_parser as parser

PIPELINE = """digraph gate {
    start [shape=Mdiamond]; done [shape=Msquare]; gate [shape=hexagon]
    start -> gate; gate -> done [label="Go"]
}"""


async def main() -> None:
    db, count = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            config = RunConfig(folder=f"{folder}/{number}", workspace=folder)
            run_input = RunInput(run_id="", graph=parser.parse(PIPELINE), config=config)
            await service.start(run_input, db=db)
        waiting = 0
        while waiting < count:
            await asyncio.sleep(0.2)
            runs = await run_list.list_runs(db=db, limit=None)
            waiting = sum(run.asks for run in runs)
        await asyncio.to_thread(process_engine.close)
    print(json.dumps({"waiting": waiting}))


if __name__ == "__main__":
    asyncio.run(main())
