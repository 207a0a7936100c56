"""Workers that share one Postgres server: what a node costs them and the server, how long nodes of
many workers take, and what follows for fleets that do not fit on this machine (``fleet_model``)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.durable import Engine, PostgresServer, find_engine, postgres, running_workers
from benchmarks.environment import BenchEnvironment
from benchmarks.fleet_model import Costs, Fleet, Node, Outcome, simulate, steady_work
from benchmarks.measure import Bar, Row, ms, progress

NODES, SECONDS, AT_ONCE = 64, 0.5, 4
CALIBRATION = 100
"""Nodes without a duration from which the costs are taken."""
IDLE = 4.0
"""Seconds in which idle workers are observed."""
COUNTS = (1, 2, 4, 8)
CLOSEST, FARTHEST = 0.75, 1.33
"""The measured time may be so many times the time of the model."""
LONGEST = 1.3
"""Times the waiting for nodes and for looks, with one worker."""
LOOK = 1.0
"""Seconds between two looks of a worker for work."""
PLACES = 100
"""Agents at once in each worker of the large fleets."""
LARGE = ((10, 2), (100, 4))
"""Workers of the large fleets, and cores of their database server."""
MEDIANS = (15.0, 60.0, 300.0)
"""Seconds of their agents."""
HORIZON = 60.0
"""Seconds that are simulated."""
TICKS = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    costs: Costs
    shortest: float
    """Time of a run with one node that does nothing."""
    seconds: dict[int, float]
    """Number of workers -> time of all nodes."""
    connections: float
    """For each worker."""
    idle_transactions: float
    """In each second, for each worker."""


def fleet(bench: BenchEnvironment) -> list[Row]:
    measured = measure(bench)
    if measured is None:
        return []
    return [*_costs(measured), *_compared(measured), *_large(measured.costs)]


def measure(bench: BenchEnvironment) -> Measured | None:
    engine = find_engine(bench)
    with postgres() as server:
        if engine is None or server is None:
            return None
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return _measure(engine, server, Path(folder))


def _submit(engine: Engine, db: str, nodes: int, seconds: float, log: Path) -> float:
    return float(engine.figures("durable_submit.py", db, nodes, seconds, log)["seconds"])


def _measure(engine: Engine, server: PostgresServer, folder: Path) -> Measured:
    import psycopg

    db = server.url("costs")
    with (
        running_workers(engine, db, 1, concurrency=AT_ONCE) as workers,
        psycopg.connect(db, autocommit=True) as connection,
    ):

        def state() -> tuple[float, float, float, float]:
            ((count,),) = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database"
                " WHERE datname = current_database()"
            ).fetchall()
            at = time.monotonic()
            return at, _cpu(workers[0].pid), _cpu_of_tree(server.pid), float(count)

        _submit(engine, db, AT_ONCE, 0.0, folder / "costs.log")  # loads what a node needs
        time.sleep(1.0)
        shortest = _submit(engine, db, 1, 0.0, folder / "costs.log")
        before = state()
        time.sleep(IDLE)
        idle = _rates(before, state())
        ((connections,),) = connection.execute(
            "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        ).fetchall()
        before = state()
        _submit(engine, db, CALIBRATION, 0.0, folder / "costs.log")
        after = state()
        seconds = after[0] - before[0]
        each = [
            (new - old - rate * seconds) / CALIBRATION
            for old, new, rate in zip(before[1:], after[1:], idle, strict=True)
        ]
        costs = Costs(
            worker=each[0],
            server=each[1],
            idle_worker=idle[0],
            idle_server=idle[1],
        )
    took: dict[int, float] = {}
    for count in COUNTS:
        db = server.url(f"workers_{count}")
        with running_workers(engine, db, count, concurrency=AT_ONCE):
            took[count] = _submit(engine, db, NODES, SECONDS, folder / f"{count}.log")
        progress(".")
    progress("\n")
    return Measured(costs, shortest, took, float(connections), idle[2])


def _rates(before: Sequence[float], after: Sequence[float]) -> list[float]:
    passed = after[0] - before[0]
    return [(new - old) / passed for old, new in zip(before[1:], after[1:], strict=True)]


def _costs(measured: Measured) -> list[Row]:
    costs = measured.costs
    return [
        Row("a node in a worker on Postgres, CPU of the worker", ms(costs.worker), ""),
        Row("a node in a worker on Postgres, CPU of the server", ms(costs.server), ""),
        Row(
            "a worker without work, CPU in each second",
            ms(costs.idle_worker),
            f"{ms(costs.idle_server)} of the server, {measured.idle_transactions:.0f} transactions,"
            f" {measured.connections:.0f} connections",
        ),
    ]


def _compared(measured: Measured) -> list[Row]:
    """The measured times, the limit, and the times of the model for this machine."""
    rows: list[Row] = []
    for count, took in measured.seconds.items():
        # Nodes that a worker takes together end together, before its next look.
        limit = NODES / (AT_ONCE * count) * max(SECONDS, LOOK)
        what = (
            f"{count} worker{'s' * (count > 1)} on one Postgres, {NODES} nodes of {SECONDS} s, wall"
        )
        ratio = took / limit
        bar = Bar(f"≤ {LONGEST:g} ×", ratio <= LONGEST) if count == 1 else None
        peer = f"nodes and looks alone {limit:.1f} s"
        rows.append(Row(what, f"{took:.1f} s", peer, ratio, bar))
        model = predicted(measured.costs, count).seconds + measured.shortest
        near = Bar(f"{CLOSEST:g}–{FARTHEST:g} ×", CLOSEST <= took / model <= FARTHEST)
        rows.append(
            Row("the same", f"{took:.1f} s", f"the model {model:.1f} s", took / model, near)
        )
    return rows


def predicted(costs: Costs, workers: int) -> Outcome:
    """What the model says of the measured fleet, all of it on this machine; without the start and
    the end of the run, which are the same for any number of workers."""
    cores = len(os.sched_getaffinity(0))
    here = Fleet(workers=workers, at_once=AT_ONCE, server_cores=cores, shared_cores=cores)
    return simulate(here, costs, [Node(1e-9, SECONDS)] * NODES)


def _large(costs: Costs) -> list[Row]:
    rows: list[Row] = []
    for workers, cores in LARGE:
        for median in MEDIANS:
            found = large_fleet(costs, workers, cores, median)
            rows.append(
                Row(
                    f"simulated: {workers} workers with {PLACES} agents of {median:g} s each",
                    f"server {found.server_load:.0%} of {cores} cores,"
                    f" a worker {found.worker_load:.0%} of one",
                    f"wait for a worker {ms(found.percentile(0.5))},"
                    f" 99th percentile {ms(found.percentile(0.99))}",
                )
            )
    return rows


def large_fleet(costs: Costs, workers: int, cores: int, median: float) -> Outcome:
    """Steady work for nine tenths of the places; workers and server on machines of their own."""
    work = steady_work(workers * PLACES, 0.9, median, HORIZON)
    large = Fleet(workers=workers, at_once=PLACES, server_cores=cores)
    return simulate(large, costs, work, until=HORIZON)


def _cpu(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    return sum(_times(pid)[1:])


def _cpu_of_tree(root: int) -> float:
    """The same of a process and of all processes that it started."""
    children: dict[int, list[int]] = {}
    total = 0.0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                parent = int(_times(int(name))[0])
                children.setdefault(parent, []).append(int(name))
    left = [root]
    while left:
        pid = left.pop()
        with suppress(OSError):
            total += _cpu(pid)
        left += children.get(pid, [])
    return total


def _times(pid: int) -> tuple[float, ...]:
    """The parent, and CPU seconds: user and system, of the process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (float(fields[1]), *(int(field) / TICKS for field in fields[11:15]))
