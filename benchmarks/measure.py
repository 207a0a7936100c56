"""The cost of a program, measured alternately with limits and peers, and the table of results.

The machines are noisy and shared, so no bar is an absolute figure. The candidates run in rounds,
one right after the other, and a ratio is the median of the ratios of the rounds: what slows a
complete round has no effect.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HEAD = ("what", "corral", "limit or peer", "ratio", "bar", "met?")


def program_cpu(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    stdin: str | Path = os.devnull,
) -> float:
    """CPU seconds, user and system, of a program and of everything it waited for."""
    with open(stdin, "rb") as given, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=given, stdout=subprocess.DEVNULL, stderr=stderr
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            stderr.seek(0)
            text = stderr.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"exit {process.returncode}: {list(argv)}\n{text}")
    return usage.ru_utime + usage.ru_stime


def program_wall(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> float:
    """Seconds from the start of a program to its end."""
    started = time.perf_counter()
    done = subprocess.run(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"exit {done.returncode}: {list(argv)}\n{text}")
    return seconds


def run_json(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> dict[str, Any]:
    """The figures that a benchmark program prints: one JSON object on its stdout."""
    done = subprocess.run(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"exit {done.returncode}: {list(argv)}\n{text}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Candidate(NamedTuple):
    measure: Callable[[], float]
    rounds: int


class Costs:
    """The cost of each candidate in each round."""

    def __init__(self, costs: Mapping[str, list[float]]) -> None:
        self._costs = costs

    def __contains__(self, name: str) -> bool:
        return name in self._costs

    def of(self, name: str, over: str | None = None) -> float:
        return median(self._series(name, over))

    def ratio(self, name: str, baseline: str, over: str | None = None) -> float:
        ours, theirs = self._series(name, over), self._series(baseline, over)
        return median(a / b for a, b in zip(ours, theirs, strict=False))

    def _series(self, name: str, over: str | None) -> list[float]:
        if over is None:
            return self._costs[name]
        return [a - b for a, b in zip(self._costs[name], self._costs[over], strict=False)]


def measure_rounds(candidates: Mapping[str, Candidate]) -> Costs:
    """Rounds of all candidates, after one that is not counted and fills the caches.

    The order changes from round to round. A candidate with fewer rounds takes part in the
    first ones.
    """
    for candidate in candidates.values():
        candidate.measure()
    costs: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(max(candidate.rounds for candidate in candidates.values())):
        names = [name for name, candidate in candidates.items() if number < candidate.rounds]
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            costs[name].append(candidates[name].measure())
        progress(".")
    progress("\n")
    return Costs(costs)


def progress(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class Bar(NamedTuple):
    """A bar, and whether it was met."""

    text: str
    met: bool


def at_most(bar: float, ratio: float) -> Bar:
    return Bar(f"≤ {bar:g} ×", ratio <= bar)


def at_least(bar: float, ratio: float) -> Bar:
    return Bar(f"≥ {bar:g} ×", ratio >= bar)


class Point(NamedTuple):
    """A point of a curve."""

    size: int
    seconds: float


class Row(NamedTuple):
    what: str
    corral: str
    baseline: str
    ratio: float | None = None
    """corral ÷ limit or peer."""
    bar: Bar | None = None
    points: tuple[Point, ...] = ()
    """How the cost grows with the size."""

    @property
    def is_drawn(self) -> bool:
        """Whether the row is part of a chart."""
        return bool(self.ratio or self.points)

    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ratio is None else f"{self.ratio:.3g} ×"
        bar, met = ("", "") if self.bar is None else (self.bar.text, _MET[self.bar.met])
        return self.what, self.corral, self.baseline, ratio, bar, met


_MET = {True: "yes", False: "MISSED"}


def table(rows: Sequence[Row]) -> str:
    return markdown([HEAD, *(row.cells() for row in rows)])


def markdown(cells: Sequence[tuple[str, ...]]) -> str:
    """A table, of which the first line is the head."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(map(str.ljust, line, widths)) + " |"
        for line in [cells[0], tuple("-" * width for width in widths), *cells[1:]]
    ]
    return "\n".join(lines)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"
