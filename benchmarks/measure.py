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


class Cost(NamedTuple):
    cpu: float
    """CPU seconds, user and system, of a program and of everything it waited for."""
    wall: float
    """Seconds from its start to its end."""


def program_cost(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    stdin: str | Path = os.devnull,
) -> Cost:
    """Raises ``RuntimeError`` if the program fails."""
    with open(stdin, "rb") as given, tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=given, stdout=subprocess.DEVNULL, stderr=stderr
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            stderr.seek(0)
            text = stderr.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"exit {process.returncode}: {list(argv)}\n{text}")
    return Cost(usage.ru_utime + usage.ru_stime, wall)


def program_cpu(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: str | Path = os.devnull
) -> float:
    return program_cost(argv, env, cwd, stdin).cpu


def program_wall(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> float:
    return program_cost(argv, env, cwd).wall


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
    is_warmed: bool = True
    """Whether it has a first round that is not counted, and fills the caches."""


class Group(NamedTuple):
    """Candidates of which one program measures all."""

    measure: Callable[[], Mapping[str, float]]
    """Candidate -> cost."""
    rounds: int
    is_warmed: bool = True


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

    def row(
        self,
        what: str,
        name: str,
        baseline: str,
        title: str,
        bar: Callable[[float], Bar] | None = None,
        *,
        show: Callable[[float], str] | None = None,
    ) -> Row:
        """Both costs, the ratio, and whether the ratio meets the bar."""
        show = show or ms
        ratio = self.ratio(name, baseline)
        return Row(
            what,
            show(self.of(name)),
            f"{title} {show(self.of(baseline))}",
            ratio,
            None if bar is None else bar(ratio),
        )

    def _series(self, name: str, over: str | None) -> list[float]:
        if over is None:
            return self._costs[name]
        return [a - b for a, b in zip(self._costs[name], self._costs[over], strict=False)]


def measure_rounds(candidates: Mapping[str, Candidate]) -> Costs:
    """Rounds of all candidates. The order changes from round to round. A candidate with fewer
    rounds takes part in the first ones."""

    def group(name: str, candidate: Candidate) -> Group:
        return Group(lambda: {name: candidate.measure()}, *candidate[1:])

    return measure_groups([group(name, candidate) for name, candidate in candidates.items()])


def measure_groups(groups: Sequence[Group]) -> Costs:
    """The same for programs that measure several candidates."""
    for group in groups:
        if group.is_warmed:
            group.measure()
    costs: dict[str, list[float]] = {}
    for number in range(max(group.rounds for group in groups)):
        left = [group for group in groups if number < group.rounds]
        turn = number % len(left)
        for group in left[turn:] + left[:turn]:
            for name, cost in group.measure().items():
                costs.setdefault(name, []).append(cost)
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
    return Bar(f"≤ {bar:.3g} ×", ratio <= bar)


def at_least(bar: float, ratio: float) -> Bar:
    return Bar(f"≥ {bar:.3g} ×", ratio >= bar)


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
