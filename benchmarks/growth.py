"""How cost grows with size: curves, and the exponent at their upper end.

An exponent of 1 is linear growth: ten times the size costs ten times as much. It is taken between
the two largest sizes, where constant costs count least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import log
from statistics import median
from typing import NamedTuple

from benchmarks.durable import find_engine
from benchmarks.environment import PROGRAMS, BenchEnvironment
from benchmarks.measure import Bar, Point, Row, ms, program_cpu, progress, run_json
from benchmarks.sessions import stored_sessions

ROUNDS = 3
LONG = 2.0
"""Seconds after which a size gets no further round."""
STEEPEST = 1.15
"""The largest exponent that still counts as linear: measured costs scatter."""


class Curve(NamedTuple):
    what: str
    unit: str
    """Of the size."""
    points: tuple[Point, ...]

    def exponent(self) -> float:
        small, large = self.points[-2:]
        return log(large.seconds / small.seconds) / log(large.size / small.size)


def growth(bench: BenchEnvironment) -> list[Row]:
    return [_row(curve) for curve in curves(bench)]


def curves(bench: BenchEnvironment) -> list[Curve]:
    most = 10 if bench.quick else 1
    """The largest sizes are left out of a quick run."""
    return [
        _curve(
            "a pipeline in memory, CPU",
            "nodes in a row",
            _sizes(10, 100_000 // most),
            partial(_nodes, bench, "corral"),
        ),
        _curve(
            "a pipeline in memory, CPU",
            "parallel branches",
            (2, 10, 100, 1_000),
            partial(_nodes, bench, "branches"),
        ),
        _curve(
            "a durable pipeline in SQLite, CPU",
            "parallel nodes",
            _sizes(10, 1_000 // most),
            partial(_durable, bench),
        ),
        _curve(
            "a stream of an agent, CPU",
            "events",
            _sizes(100, 1_000_000 // most),
            partial(_events, bench),
        ),
        _curve(
            "corral runs list, CPU",
            "stored sessions",
            _sizes(10, 10_000 // most),
            partial(_sessions, bench),
        ),
    ]


def _sizes(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(sizes[-1] * 10)
    return sizes


def _curve(
    what: str, unit: str, sizes: Sequence[int], measure: Callable[[int], float | None]
) -> Curve:
    points: list[Point] = []
    for size in sizes:
        seconds: list[float] = []
        # A large size is measured once: it scatters less, and takes long.
        while len(seconds) < ROUNDS and sum(seconds) < LONG:
            found = measure(size)
            if found is None:
                break
            seconds.append(found)
        if seconds:
            points.append(Point(size, median(seconds)))
        progress(".")
    progress("\n")
    return Curve(what, unit, tuple(points))


def _row(curve: Curve) -> Row:
    what = f"{curve.what}, by {curve.unit}"
    if len(curve.points) < 2:
        return Row(what, "not measured", "")
    exponent = curve.exponent()
    return Row(
        f"{what}: growth",
        f"size^{exponent:.2f}",
        ", ".join(f"{point.size:,}: {_time(point.seconds)}" for point in curve.points),
        None,
        Bar(f"≤ {STEEPEST:g}", exponent <= STEEPEST),
        curve.points,
    )


def _nodes(bench: BenchEnvironment, way: str, count: int) -> float:
    argv = [str(bench.python), str(PROGRAMS / "nodes.py"), way, str(count)]
    return float(run_json(argv, bench.env, bench.project)["seconds"])


def _durable(bench: BenchEnvironment, count: int) -> float | None:
    engine = find_engine(bench)
    if engine is None:
        return None
    return float(engine.figures("durable.py", "corral", count, "wide")["cpu"])


def _events(bench: BenchEnvironment, count: int) -> float:
    argv = [str(bench.python), str(PROGRAMS / "stream.py"), "corral", str(bench.stream(count))]
    return float(run_json(argv, bench.env, bench.project)["cpu"])


def _sessions(bench: BenchEnvironment, count: int) -> float:
    env = {**bench.env, "CORRAL_HOME": str(stored_sessions(count))}
    argv = [str(bench.corral), "runs", "list"]
    program_cpu(argv, env, bench.project)  # makes the index, if there is none
    return program_cpu(argv, env, bench.project)


def _time(seconds: float) -> str:
    return ms(seconds) if seconds < 1 else f"{seconds:.1f} s"
