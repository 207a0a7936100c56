"""Run durable nodes that do nothing: with corral, with bare DBOS, or with a peer.

    durable.py WAY COUNT wide|chain|batch|steps [DATABASE]

Prints the CPU seconds of this process and the wall-clock seconds, without imports, start and end;
of a batch and of the steps of a workflow also by how many bytes the process grew in the last nine
tenths. A DATABASE is for batches; without it, it is a new file.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

POLL = 0.1
"""Seconds between two polls of a queue and of an inbox, for both."""


def main() -> None:
    way, count, form = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "corral": {"batch": batch, "steps": steps}.get(form, corral),
            "bare": {"batch": bare_batch, "steps": bare_steps}.get(form, bare),
            "prefect": prefect,
        }
        cpu, wall, *grown = ways[way](Path(folder), count, form)
    print(json.dumps({"cpu": cpu, "wall": wall, "grown": sum(grown)}))


def corral(folder: Path, count: int, form: str) -> tuple[float, float]:
    from corral._engine import process_engine, service
    from corral._engine.dbos.database import find, prepare
    from corral._engine.payloads import RunConfig, RunInput
    from corral._pipelines.execution import handlers
    from corral._pipelines.graph import Edge, Graph, Node
    from corral._pipelines.scheduler.outcome import Outcome

    async def nothing(_work: Any) -> Outcome:
        return Outcome()

    handlers.register("nothing", nothing)
    names = [f"n{number}" for number in range(count)]
    nodes = {name: Node(name, {"type": "nothing"}) for name in names}
    nodes |= {"start": Node("start", {"type": "start"}), "exit": Node("exit", {"type": "exit"})}
    if form == "chain":
        row = ["start", *names, "exit"]
        edges = [Edge(a, b) for a, b in pairwise(row)]
    else:
        nodes["fork"] = Node("fork", {"type": "parallel", "max_parallel": count})
        nodes["join"] = Node("join", {"type": "fan_in"})
        edges = [Edge("start", "fork"), Edge("join", "exit")]
        for name in names:
            edges += [Edge("fork", name), Edge(name, "join")]
    graph = Graph("nothing", {}, nodes, edges)
    db = str(folder / "x.db")

    async def run_to_end() -> tuple[float, float]:
        await asyncio.to_thread(prepare, find(db))
        await asyncio.to_thread(process_engine.local, find(db), poll=POLL)
        begin = clocks()
        config = RunConfig(folder=str(folder / "run"), workspace=str(folder))
        run = await service.start(RunInput(run_id="", graph=graph, config=config), db=db)
        closed = await service.wait(run, db=db)
        end = clocks()
        assert closed.status == "success", closed.reason
        await asyncio.to_thread(process_engine.close)
        return end[0] - begin[0], end[1] - begin[1]

    return asyncio.run(run_to_end())


def bare(folder: Path, count: int, form: str) -> tuple[float, float]:
    """The minimal program that does the same with the library: a queued child workflow for each
    node, with one step, that sends its result to its parent's inbox."""
    from dbos import DBOS, DBOSConfig, SetWorkflowID
    from dbos._serialization import DBOSPortableJSON

    file = folder / "x.db"
    opened = sqlite3.connect(file)
    opened.execute("PRAGMA journal_mode=WAL")
    opened.close()
    config: DBOSConfig = {
        "name": "bare",
        "system_database_url": f"sqlite:///{file}",
        "serializer": DBOSPortableJSON,
        "log_level": "ERROR",
        "notification_listener_polling_interval_sec": POLL,
    }

    @DBOS.step(name="nothing")
    async def nothing() -> dict[str, str]:
        return {"status": "success"}

    @DBOS.workflow(name="child")
    async def child(parent: str, number: int) -> None:
        outcome = await nothing()
        await DBOS.send_async(parent, {"id": number, **outcome}, "inbox")

    @DBOS.workflow(name="parent")
    async def parent(count: int, form: str) -> int:
        me = DBOS.workflow_id
        assert me is not None

        async def begin(number: int) -> None:
            with SetWorkflowID(f"{me}/{number}"):
                await DBOS.enqueue_workflow_async("q", child, me, number)

        if form == "wide":
            for number in range(count):
                await begin(number)
        for number in range(count):
            if form == "chain":
                await begin(number)
            assert await DBOS.recv_async("inbox", 3600) is not None
        return count

    async def run_to_end() -> tuple[float, float]:
        DBOS(config=config)
        DBOS.launch()
        await DBOS.register_queue_async("q", polling_interval_sec=POLL)
        await asyncio.sleep(1.5)  # the library looks for new queues once a second
        start = clocks()
        handle = await DBOS.enqueue_workflow_async("q", parent, count, form)
        assert await handle.get_result(polling_interval_sec=POLL) == count
        end = clocks()
        await asyncio.to_thread(DBOS.destroy)
        return end[0] - start[0], end[1] - start[1]

    return asyncio.run(run_to_end())


def batch(folder: Path, count: int, _form: str) -> tuple[float, float, float]:
    """A durable batch of tasks whose agent is simulated."""
    import os

    os.environ["CORRAL_HOME"] = str(folder / "home")
    import corral as library

    tasks = [{"number": number} for number in range(count)]
    sizes: list[int] = []

    def on_result(_result: object, report: Any) -> None:
        if report.succeeded in (count // 10, count):
            sizes.append(resident())

    async def run_to_end(tasks: list[dict[str, int]], name: str) -> tuple[float, float]:
        begin = clocks()
        made = library.batch(
            tasks,
            "{{number}}",
            name=f"{name}-{os.getpid()}",
            simulate=True,
            concurrency=16,
            db=database(folder),
            results=folder / f"{name}.jsonl",
            cwd=folder,
            on_result=on_result,
        )
        made.collects = False
        report = await made
        end = clocks()
        assert report.succeeded == len(tasks), report
        return end[0] - begin[0], end[1] - begin[1]

    asyncio.run(run_to_end(tasks[:1], "warm"))
    sizes.clear()
    cpu, wall = asyncio.run(run_to_end(tasks, "measured"))
    return cpu, wall, float(sizes[-1] - sizes[0])


STEPS = """
import sys

import corral

@corral.workflow
async def steps(flow: corral.workflows.Flow, count: int) -> int:
    for number in range(count):
        await flow.command(f"echo {number}")
        sys.modules["__main__"].step_ended(number)
    return count
"""


def steps(folder: Path, count: int, _form: str) -> tuple[float, float, float]:
    """The steps of a workflow, one after another; their commands are simulated."""
    import os

    os.environ["CORRAL_HOME"] = str(folder / "home")
    from corral import workflows
    from corral._engine import process_engine
    from corral._engine.dbos.database import find, prepare
    from corral._workflows.definition import load_text

    path, db = folder / "steps.py", str(folder / "x.db")
    path.write_text(STEPS)
    workflow = load_text(str(path), STEPS)
    sizes: list[int] = []

    def step_ended(number: int) -> None:
        if number + 1 in (count // 10, count):
            sizes.append(resident())

    globals()["step_ended"] = step_ended

    async def run_to_end() -> tuple[float, float]:
        await asyncio.to_thread(prepare, find(db))
        await asyncio.to_thread(process_engine.local, find(db), poll=POLL)
        await workflows.run(workflow, {"count": 10}, db=db, cwd=folder, simulate="all")
        sizes.clear()
        begin = clocks()
        result = await workflows.run(workflow, {"count": count}, db=db, cwd=folder, simulate="all")
        end = clocks()
        assert result.output == count, result.reason
        await asyncio.to_thread(process_engine.close)
        return end[0] - begin[0], end[1] - begin[1]

    cpu, wall = asyncio.run(run_to_end())
    return cpu, wall, float(sizes[-1] - sizes[0])


def bare_steps(folder: Path, count: int, _form: str) -> tuple[float, float, float]:
    """The steps of one workflow of the library."""
    from dbos import DBOS, DBOSConfig
    from dbos._serialization import DBOSPortableJSON

    file = folder / "x.db"
    with sqlite3.connect(file) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
    config: DBOSConfig = {
        "name": "bare",
        "system_database_url": f"sqlite:///{file}",
        "serializer": DBOSPortableJSON,
        "log_level": "ERROR",
    }
    sizes: list[int] = []

    @DBOS.step(name="nothing")
    async def nothing(number: int) -> dict[str, object]:
        return {"ok": True, "exit_code": 0, "stdout": f"{number}\n", "stderr": ""}

    @DBOS.workflow(name="steps")
    async def workflow(count: int) -> int:
        for number in range(count):
            await nothing(number)
            if number + 1 in (count // 10, count):
                sizes.append(resident())
        return count

    async def run_to_end() -> tuple[float, float]:
        DBOS(config=config)
        DBOS.launch()
        await (await DBOS.start_workflow_async(workflow, 10)).get_result()
        sizes.clear()
        start = clocks()
        assert await (await DBOS.start_workflow_async(workflow, count)).get_result() == count
        end = clocks()
        await asyncio.to_thread(DBOS.destroy)
        return end[0] - start[0], end[1] - start[1]

    cpu, wall = asyncio.run(run_to_end())
    return cpu, wall, float(sizes[-1] - sizes[0])


def resident() -> int:
    """Bytes of this process in memory."""
    import os

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def database(folder: Path) -> str:
    return sys.argv[4] if len(sys.argv) > 4 else str(folder / "x.db")


def bare_batch(folder: Path, count: int, _form: str) -> tuple[float, float]:
    """The minimal program that does the same with the library: a queued workflow with one step for
    each task; then wait for each."""
    from dbos import DBOS, DBOSConfig
    from dbos._serialization import DBOSPortableJSON

    url = database(folder)
    if "://" not in url:
        with sqlite3.connect(url) as opened:
            opened.execute("PRAGMA journal_mode=WAL")
        url = f"sqlite:///{url}"
    config: DBOSConfig = {
        "name": "bare",
        "system_database_url": url,
        "serializer": DBOSPortableJSON,
        "log_level": "ERROR",
    }

    @DBOS.step(name="nothing")
    async def nothing(number: int) -> dict[str, int]:
        return {"number": number}

    @DBOS.workflow(name="task")
    async def task(number: int) -> dict[str, int]:
        return await nothing(number)

    async def run_to_end() -> tuple[float, float]:
        DBOS(config=config)
        DBOS.launch()
        await DBOS.register_queue_async("q", polling_interval_sec=POLL, worker_concurrency=16)
        await asyncio.sleep(1.5)  # the library looks for new queues once a second
        start = clocks()
        handles = [await DBOS.enqueue_workflow_async("q", task, each) for each in range(count)]
        for number, handle in enumerate(handles):
            found = await handle.get_result(polling_interval_sec=POLL)
            assert found == {"number": number}
        end = clocks()
        await asyncio.to_thread(DBOS.destroy)
        return end[0] - start[0], end[1] - start[1]

    return asyncio.run(run_to_end())


def prefect(folder: Path, count: int, form: str) -> tuple[float, float]:
    import os

    os.environ["PREFECT_HOME"] = str(folder)
    os.environ["PREFECT_LOGGING_LEVEL"] = "CRITICAL"
    os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "180"
    import importlib

    library: Any = importlib.import_module("prefect")

    def same(number: int) -> int:
        return number

    nothing = library.task(same, persist_result=True)

    @library.flow(persist_result=True)  # type: ignore[untyped-decorator]
    def run_to_end(count: int) -> int:
        if form == "chain":
            for number in range(count):
                nothing(number)
        else:
            for future in [nothing.submit(number) for number in range(count)]:
                future.result()
        return count

    run_to_end(1)
    begin = clocks()
    assert run_to_end(count) == count
    end = clocks()
    return end[0] - begin[0], end[1] - begin[1]


def clocks() -> tuple[float, float]:
    import resource

    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime, time.monotonic()


if __name__ == "__main__":
    main()
