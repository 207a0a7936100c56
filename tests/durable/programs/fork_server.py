"""A process that has loaded the engine already, and forks one that uses it for each order.

Orders are lines of JSON on stdin, answers lines on stdout. The engine takes half a second
to import, and a kill at every point of a run takes hundreds of processes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import dbos  # noqa: F401  # pyright: ignore[reportUnusedImport]
import psycopg  # noqa: F401  # pyright: ignore[reportUnusedImport]
import sqlalchemy.dialects.postgresql.psycopg  # pyright: ignore[reportUnusedImport]
import sqlalchemy.dialects.sqlite  # noqa: F401  # pyright: ignore[reportUnusedImport]

import corral.cli.batch  # pyright: ignore[reportUnusedImport]
import corral.cli.pipeline.group  # noqa: F401  # pyright: ignore[reportUnusedImport]
from corral.cli.main import main as corral_main
from corral.durable import service
from corral.durable.dbos import adapter
from corral.durable.dbos.client import Limit
from corral.durable.worker import executor, node_workflow, run_workflow, worker
from corral.errors import ConfigError
from corral.pipelines import loader
from corral.pipelines.execution import handlers
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.scheduler.outcome import Outcome


@handlers.handler("t.step")
async def step(work: NodeContext) -> Outcome:
    """Says that it began, takes its time, says that it ended."""
    log = Path(str(work.context["log"]))
    with log.open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    await asyncio.sleep(float(work.node.attrs.get("sleep", 0)))
    if work.attempt <= work.node.number("fails", 0):
        return Outcome(status="retry", failure_reason="not yet")
    with log.open("a") as file:
        file.write(f"end {work.visit.id}#{work.attempt} {os.getpid()}\n")
    return Outcome(context_updates={f"done.{work.node.id}": work.visit.id})


@handlers.handler("t.kill")
async def kill(work: NodeContext) -> Outcome:
    """Kills whoever runs it."""
    with Path(str(work.context["log"])).open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return Outcome()


@handlers.handler("t.wait")
async def wait_for_file(work: NodeContext) -> Outcome:
    """Until a file is there."""
    with Path(str(work.context["log"])).open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    while not Path(work.node.text("file")).exists():
        await asyncio.sleep(0.02)
    return Outcome(context_updates={f"done.{work.node.id}": work.visit.id})


def main() -> None:
    if os.fork():
        os._exit(0)  # it is nobody's child: some tests count theirs
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "reap":
            answer = os.waitstatus_to_exitcode(os.waitpid(order["pid"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                if order["do"] == "cli":
                    command(order)
                child(order)
        print(json.dumps(answer), flush=True)


def command(order: dict[str, Any]) -> None:
    """``corral`` with these words, from its entry point to the end of the process."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for fd, (path, flags) in enumerate(
        zip(order["streams"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
    ):
        os.dup2(os.open(path, flags), fd)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["corral", *order["words"]]
    corral_main()


def child(order: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(order["env"])
        if "kill_at" in order:
            kill_at(order["kill_at"], Path(order["moments"]))
        for name, value in order.get("constants", {}).items():
            module, _, constant = name.partition(".")
            setattr(
                {"runs": run_workflow, "executor": executor, "visits": node_workflow}[module],
                constant,
                value,
            )
        {"run": run, "work": work, "batch": batch}[order["do"]](order)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def kill_at(number: int, moments: Path) -> None:
    """This process dies at the n-th write to a journal; 0: it counts them."""
    seen = 0

    def watch(moment: str) -> None:
        nonlocal seen
        seen += 1
        if not number:
            moments.write_text(str(seen))
        elif seen == number:
            moments.write_text(moment)
            os.kill(os.getpid(), signal.SIGKILL)

    adapter.watch = watch


def run(order: dict[str, Any]) -> None:
    """Begin the run, or take it up again; to its end."""

    async def whole() -> None:
        try:
            name = await service.start(
                loader.load(order["graph"]),
                service.RunRequest(
                    folder=Path(order["folder"]),
                    workspace=Path(order["workspace"]),
                    run_id=order["run"],
                    values={"log": order["log"]},
                    detached=order.get("detached"),
                    options=order.get("options") or {},
                ),
                db=order["db"],
            )
        except ConfigError as error:
            if "already" not in str(error):
                raise
            name = await service.resume(order["run"], db=order["db"])
        await service.wait(name, db=order["db"], timeout=order.get("timeout", 60))

    asyncio.run(whole())
    service.close()


def batch(order: dict[str, Any]) -> None:
    importlib.import_module("killed_batch").run(**order["batch"])


def work(order: dict[str, Any]) -> None:
    def ready(here: executor.Executor) -> None:
        Path(order["ready"]).write_text(here.id)

    limits = [Limit(**each) for each in order.get("limits", [])]
    options = worker.WorkerOptions(
        queue_names=order["queue_names"],
        limits=limits,
        concurrency=order.get("at_once", 16),
        drain=order.get("drain", 0.0),
        poll=order.get("poll", 0.05),
        grace=order.get("grace", executor.GRACE),
    )
    worker.serve(order["db"], options, on_ready=ready)


if __name__ == "__main__":
    main()
