"""Runs areas one after the other. What is measured is printed and stored at once: a benchmark that
fails, or the end of the program, costs no figures of others."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from benchmarks import environment, page
from benchmarks.environment import BenchEnvironment
from benchmarks.measure import Row, markdown, progress, table
from benchmarks.plots import write_plots

LONGEST = 600.0
"""Seconds after which a benchmark is stopped, and counts as failed."""
SAMPLE = 0.5
"""Seconds in which the load by other programs is observed, before and after an area."""

Benchmark = Callable[[BenchEnvironment], list[Row]]
Areas = Mapping[str, Mapping[str, Benchmark]]


class AreaResult(NamedTuple):
    name: str
    rows: list[Row]
    failed: list[str]
    """The benchmarks without figures."""
    seconds: dict[str, float]
    """Benchmark -> wall time."""
    cpu: float
    """CPU seconds of this program and of all programs it waited for."""
    load: float
    """Part of the cores that other programs used."""


def main(words: Sequence[str] | None, areas: Areas, page_file: Path) -> int:
    given = _parse(words, areas)
    bench = BenchEnvironment(quick=given.quick)
    chosen = _choose(given.names, areas)
    if given.page:
        page.check(page_file, chosen)
    results: list[AreaResult] = []
    for area, benchmarks in chosen.items():
        result = run_area(area, benchmarks, bench)
        results.append(result)
        print(f"\n## {area}\n\n{table(result.rows)}", flush=True)
        write_plots({area: result.rows}, environment.CACHE / "plots")
        if given.page and result.rows:
            page.update(page_file, area, result.rows, page.footer(result.failed, result.load))
    print(f"\n{_times(results)}")
    missed = sum("MISSED" in row.cells() for result in results for row in result.rows)
    print(f"\n{missed} missed." if missed else "\nEvery bar is met.")
    failed = [name for result in results for name in result.failed]
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return 1 if failed else 0


def _parse(words: Sequence[str] | None, areas: Areas) -> argparse.Namespace:
    every = [name for benchmarks in areas.values() for name in benchmarks]
    parser = argparse.ArgumentParser(description="How fast corral is; see README.md.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"an area or a benchmark: {', '.join(every)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds; only peers that are installed already"
    )
    parser.add_argument(
        "--page", action="store_true", help="update docs/performance.md and its charts"
    )
    given = parser.parse_args(words)
    if unknown := [name for name in given.names if name not in every and name not in areas]:
        parser.error(f"unknown benchmark {unknown[0]}; there are: {', '.join(every)}")
    chosen = _choose(given.names, areas)
    if given.page and (parts := [area for area in chosen if [*chosen[area]] != [*areas[area]]]):
        parser.error(f"--page needs complete areas: {parts[0]} is {', '.join(areas[parts[0]])}")
    return given


def _choose(names: Sequence[str], areas: Areas) -> Areas:
    """The named benchmarks and areas; without names, all."""
    chosen = {
        area: {
            name: benchmark
            for name, benchmark in benchmarks.items()
            if not names or {name, area} & {*names}
        }
        for area, benchmarks in areas.items()
    }
    return {area: benchmarks for area, benchmarks in chosen.items() if benchmarks}


def run_area(
    area: str,
    benchmarks: Mapping[str, Benchmark],
    bench: BenchEnvironment,
    longest: float = LONGEST,
) -> AreaResult:
    rows: list[Row] = []
    failed: list[str] = []
    seconds: dict[str, float] = {}
    load, cpu = other_load(), _cpu()
    for name, benchmark in benchmarks.items():
        started = time.monotonic()
        progress(f"{name} ")
        try:
            with _stop_after(longest):
                rows += benchmark(bench)
        except Exception:
            failed.append(name)
            progress(f"\n{name} failed\n{traceback.format_exc()}")
        seconds[name] = time.monotonic() - started
        progress(f"{name} took {seconds[name]:.0f} s\n")
    return AreaResult(area, rows, failed, seconds, _cpu() - cpu, (load + other_load()) / 2)


@contextmanager
def _stop_after(seconds: float) -> Generator[None]:
    """Raise ``TimeoutError`` in the block if it takes longer, wherever it waits."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _times(results: Sequence[AreaResult]) -> str:
    lines = [("area", "seconds", "CPU seconds", "load by others", "benchmarks")]
    for name, _, failed, seconds, cpu, load in results:
        each = (
            f"{benchmark} {'failed' if benchmark in failed else f'{took:.0f}'}"
            for benchmark, took in seconds.items()
        )
        total = sum(seconds.values())
        lines.append((name, f"{total:.0f}", f"{cpu:.0f}", f"{load:.0%}", ", ".join(each)))
    wall = sum(sum(result.seconds.values()) for result in results)
    cpu = sum(result.cpu for result in results)
    return markdown([*lines, ("all", f"{wall:.0f}", f"{cpu:.0f}", "", f"{wall / 60:.1f} min")])


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def other_load(seconds: float = SAMPLE) -> float:
    """Part of all cores in use while this program does nothing; 0 if the system does not say."""
    try:
        before = _busy()
        time.sleep(seconds)
        after = _busy()
    except OSError:
        return 0.0
    cores = os.cpu_count() or 1
    return min(1.0, (after - before) / (seconds * cores))


def _busy() -> float:
    """CPU seconds that the machine was not idle: user, nice and system."""
    fields = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
