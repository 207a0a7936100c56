"""CPU seconds of a chain of nodes that do nothing, in one way, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any


def corral(
    count: int, *, folder: Path | None = None, branches: bool = False
) -> Callable[[], Awaitable[object]]:
    from corral._engine import memory_runner
    from corral._pipelines import dot_parser as parser
    from corral._pipelines.execution import handlers

    async def nothing(_work: handlers.NodeContext) -> None:
        return None

    handlers.register("nothing", nothing)
    names = [f"n{number}" for number in range(count)]
    if branches:
        steps = f"f [type=parallel max_parallel={count}] j [type=fan_in] s -> f j -> e "
        steps += " ".join(f"f -> {name} -> j" for name in names)
    else:
        steps = f"s -> {' -> '.join(names)} -> e"
    graph = parser.parse(
        f"digraph nothing {{ node [type=nothing] s [type=start] e [type=exit] {steps} }}"
    )

    async def run() -> object:
        return await memory_runner.MemoryRun(
            graph, resources=handlers.NodeResources(), folder=folder
        ).drive()

    return run


def scheduler_alone(count: int) -> Callable[[], Awaitable[object]]:
    """The scheduler alone, without an event loop and tasks."""
    from corral._pipelines import dot_parser as parser
    from corral._pipelines.scheduler.commands import Ended, RunNode
    from corral._pipelines.scheduler.outcome import Outcome
    from corral._pipelines.scheduler.scheduler import Scheduler

    chain = " -> ".join(f"n{number}" for number in range(count))
    graph = parser.parse(f"digraph chain {{ s [type=start] e [type=exit] s -> {chain} -> e }}")

    async def run() -> object:
        scheduler = Scheduler(graph)
        commands = scheduler.start()
        while scheduler.state.finish is None:
            visit = next(command for command in commands if isinstance(command, RunNode))
            commands = scheduler.receive(Ended(id=visit.id, outcome=Outcome()))
        return scheduler

    return run


def tasks(count: int) -> Callable[[], Awaitable[object]]:
    """The minimal program: a task for each node, which reports through a queue."""

    async def nothing() -> None:
        return None

    async def run() -> object:
        inbox: asyncio.Queue[int] = asyncio.Queue()

        async def step(number: int) -> None:
            await nothing()
            inbox.put_nowait(number)

        for number in range(count):
            task = asyncio.create_task(step(number))
            await inbox.get()
            await task
        return None

    return run


def files(count: int, *, folder: Path) -> Callable[[], Awaitable[object]]:
    """The files that a run folder has for each node, by bare system calls: a directory, a link to
    it and a file in it."""

    async def run() -> object:
        (folder / "visits").mkdir(parents=True)
        for number in range(count):
            directory = f"{folder}/visits/n{number}.1"
            os.mkdir(directory)
            os.symlink(f"visits/n{number}.1", f"{folder}/n{number}")
            with open(f"{directory}/.draft", "wb") as file:
                file.write(b"x" * 120)
            os.replace(f"{directory}/.draft", f"{directory}/status.json")
        return None

    return run


def langgraph(count: int) -> Callable[[], Awaitable[object]]:
    import importlib
    from typing import TypedDict

    graphs: Any = importlib.import_module("langgraph.graph")

    class State(TypedDict, total=False):
        x: int

    async def nothing(_state: State) -> None:
        return None

    builder = graphs.StateGraph(State)
    for number in range(count):
        builder.add_node(f"n{number}", nothing)
    builder.add_edge(graphs.START, "n0")
    for number in range(count - 1):
        builder.add_edge(f"n{number}", f"n{number + 1}")
    builder.add_edge(f"n{count - 1}", graphs.END)
    compiled = builder.compile()

    async def run() -> object:
        return await compiled.ainvoke({"x": 1}, {"recursion_limit": count + 10})

    return run


def main(way: str, count: int, parent: str | None = None) -> None:
    """``parent``: where a run folder is created and stays."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(parent or temporary) / f"run-{os.getpid()}"
        print(json.dumps({"seconds": measure(way, count, folder)}))


def measure(way: str, count: int, folder: Path) -> float:
    ways: dict[str, Callable[[int], Callable[[], Awaitable[object]]]] = {
        "corral": corral,
        "folder": partial(corral, folder=folder),
        "files": partial(files, folder=folder),
        "branches": partial(corral, branches=True),
        "scheduler": scheduler_alone,
        "tasks": tasks,
        "langgraph": langgraph,
    }
    run = ways[way](count)

    async def measured() -> float:
        started = time.process_time()
        await run()
        return time.process_time() - started

    return asyncio.run(measured())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
