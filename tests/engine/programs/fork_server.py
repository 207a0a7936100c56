"""A preloaded process that forks another one for each request.

Requests are lines of JSON on stdin, answers are lines on stdout. The import of the engine takes
half a second, and the tests that kill a run at every moment need hundreds of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import dbos  # noqa: F401  # pyright: ignore[reportUnusedImport]
import psycopg  # noqa: F401  # pyright: ignore[reportUnusedImport]
import sqlalchemy.dialects.postgresql.psycopg  # pyright: ignore[reportUnusedImport]
import sqlalchemy.dialects.sqlite  # noqa: F401  # pyright: ignore[reportUnusedImport]

import corral
from corral._cli.entry import main as corral_main
from corral._engine import existing_runs, process_engine, service, workflow_runs
from corral._engine.continue_run import Changes, continue_run
from corral._engine.dbos import adapter
from corral._engine.dbos.client import QueueLimit
from corral._engine.follow_run import FollowOptions
from corral._engine.payloads import RunConfig, RunInput
from corral._engine.run_options import WorkflowKwargs
from corral._engine.worker import executor, node_workflow, run_workflow, worker
from corral._pipelines import loader
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.execution.interviewers import AutoApprove
from corral._pipelines.scheduler.outcome import Outcome
from corral._workflows import definition
from corral.errors import ConfigError

LEFT_OUT = ("corral.__main__", "corral._testing", "corral.providers", "corral._view")
"""Modules that the commands of these tests do not need."""


@handlers.handler("t.step")
async def step(work: NodeContext) -> Outcome:
    """Logs its start, sleeps, logs its end."""
    log = Path(str(work.context["log"]))
    with log.open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    await asyncio.sleep(float(work.node.attrs.get("sleep", 0)))
    if work.attempt <= work.node.number("fails", 0):
        return Outcome(status="retry", failure_reason="not yet")
    with log.open("a") as file:
        file.write(f"end {work.visit.id}#{work.attempt} {os.getpid()}\n")
    return Outcome(context_updates={f"done.{work.node.id}": work.visit.id})


@handlers.handler("t.limited")
async def limited(work: NodeContext) -> Outcome:
    """Meets a rate limit of so many seconds, ``times`` times."""
    with Path(str(work.context["log"])).open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    if work.attempt <= work.node.number("times", 1):
        resets_at = time.time() + float(work.node.attrs["seconds"])
        return Outcome(status="fail", failure_reason="slow down", resets_at=resets_at)
    return Outcome(context_updates={f"done.{work.node.id}": work.visit.id})


@handlers.handler("t.kill")
async def kill(work: NodeContext) -> Outcome:
    """Kills its own process."""
    with Path(str(work.context["log"])).open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return Outcome()


@handlers.handler("t.wait")
async def wait_for_file(work: NodeContext) -> Outcome:
    """Waits for a file."""
    with Path(str(work.context["log"])).open("a") as file:
        file.write(f"begin {work.visit.id}#{work.attempt} {os.getpid()}\n")
    while not Path(work.node.text("file")).exists():
        await asyncio.sleep(0.02)
    return Outcome(context_updates={f"done.{work.node.id}": work.visit.id})


def main() -> None:
    if os.fork():
        os._exit(0)  # not a child of the tests: some count their children
    preload()
    gc.freeze()  # what was imported stays out of the garbage collections of the children
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "reap":
            answer = os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                if request["do"] == "cli":
                    command(request)
                child(request)
        print(json.dumps(answer), flush=True)


def preload() -> None:
    """Import what a command would import when it needs it."""
    gc.disable()
    for found in pkgutil.walk_packages(corral.__path__, "corral."):
        if not found.name.startswith(LEFT_OUT):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)
    gc.enable()


def command(request: dict[str, Any]) -> None:
    """Run ``corral`` with these arguments, to the end of the process."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for fd, (path, flags) in enumerate(
        zip(request["streams"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
    ):
        os.dup2(os.open(path, flags), fd)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["corral", *request["words"]]
    corral_main()


def child(request: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(request["env"])
        if "kill_at" in request:
            kill_at(request["kill_at"], Path(request["moments"]))
        for name, value in request.get("constants", {}).items():
            module, _, constant = name.partition(".")
            setattr(
                {"run_workflow": run_workflow, "node_workflow": node_workflow}[module],
                constant,
                value,
            )
        {"run": run, "work": work, "batch": batch, "workflow": workflow}[request["do"]](request)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def kill_at(number: int | str, moments: Path) -> None:
    """Kill this process at the n-th write to a journal, or at the first with this name; 0: count
    the writes."""
    seen = 0

    def watch(moment: str) -> None:
        nonlocal seen
        seen += 1
        if not number:
            moments.write_text(str(seen))
        elif number in (seen, moment):
            moments.write_text(moment)
            os.kill(os.getpid(), signal.SIGKILL)

    adapter.watch = watch


def run(request: dict[str, Any]) -> None:
    """Start or resume the run, and wait for its end."""

    async def scenario() -> None:
        try:
            run_input = RunInput(
                run_id=request["run"],
                graph=loader.load(request["graph"]),
                config=RunConfig(
                    folder=request["folder"],
                    workspace=request["workspace"],
                    detached=request.get("detached"),
                    options=request.get("options") or {},
                ),
                values={"log": request["log"]},
            )
            name = await service.start(run_input, db=request["db"])
        except ConfigError as error:
            if "already" not in str(error):
                raise
            name = request["run"]
            restarts = bool(request.get("restarts_jobs"))
            await service.resume(name, db=request["db"], restarts_jobs=restarts)
        await service.wait(name, db=request["db"], timeout=request.get("timeout", 60))

    asyncio.run(scenario())
    process_engine.close()


def workflow(request: dict[str, Any]) -> None:
    """Start or resume the run of a workflow, and wait for its end. Questions are answered with
    their first choice."""

    async def scenario() -> None:
        path, db = request["file"], request["db"]
        follow = FollowOptions(db=db, interviewer=AutoApprove())
        found = definition.load_text(path, definition.read_file(path))
        asked: WorkflowKwargs = {
            "run_id": request["run"],
            "run_dir": request["folder"],
            "cwd": request["workspace"],
            "queue": request.get("queue"),
            "simulate": request.get("simulate", False),
        }
        try:
            await workflow_runs.start(found, request["args"], asked, follow)
        except ConfigError as error:
            if "not empty" not in str(error):
                raise
            try:
                plan = await existing_runs.prepare_resume(request["run"], Changes(), db=db)
            except ConfigError as missing:
                if "there is no run" not in str(missing):
                    raise
                # It was killed before the run was stored.
                asked["run_dir"] = None
                await workflow_runs.start(found, request["args"], asked, follow)
                return
            await continue_run(plan, follow)

    asyncio.run(scenario())
    process_engine.close()


def batch(request: dict[str, Any]) -> None:
    importlib.import_module("killed_batch").run(**request["batch"])


def work(request: dict[str, Any]) -> None:
    def ready(here: executor.Executor) -> None:
        Path(request["ready"]).write_text(here.id)

    limits = [QueueLimit(**each) for each in request.get("limits", [])]
    options = worker.WorkerOptions(
        queue_names=request["queue_names"],
        limits=limits,
        concurrency=request.get("at_once", 16),
        drain=request.get("drain", 0.0),
        poll=request.get("poll", 0.05),
        grace=request.get("grace", executor.GRACE),
    )
    worker.serve(request["db"], options, on_ready=ready)


if __name__ == "__main__":
    main()
