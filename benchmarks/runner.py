"""Runs areas one after the other. What is measured is printed and stored at once: a benchmark that
fails, or the end of the program, costs no figures of others."""

from __future__ import annotations

import argparse
import os
import resource
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import environment, page
from benchmarks.environment import BenchEnvironment
from benchmarks.measure import Cost, Row, markdown, progress, table
from benchmarks.plots import write_plots
from benchmarks.time_limit import time_limit

LONGEST = 600.0
"""Seconds after which a benchmark is stopped, and counts as failed. Without installations."""
SAMPLE = 0.5
"""Seconds in which the load by other programs is observed, before and after an area."""

Benchmark = Callable[[BenchEnvironment], list[Row]]
Areas = Mapping[str, Mapping[str, Benchmark]]


class AreaResult(NamedTuple):
    name: str
    rows: list[Row]
    failed: list[str]
    """The benchmarks without figures."""
    costs: dict[str, Cost]
    """Of each benchmark: of this program and of all programs it waited for."""
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
    costs: dict[str, Cost] = {}
    load = other_load()
    for name, benchmark in benchmarks.items():
        cpu, started = _cpu(), time.monotonic()
        progress(f"{name} ")
        try:
            with time_limit(longest):
                rows += benchmark(bench)
        except Exception:
            failed.append(name)
            progress(f"\n{name} failed\n{traceback.format_exc()}")
        costs[name] = Cost(_cpu() - cpu, time.monotonic() - started)
        progress(f"{name} took {costs[name].wall:.0f} s, CPU {costs[name].cpu:.0f} s\n")
    return AreaResult(area, rows, failed, costs, (load + other_load()) / 2)


def _times(results: Sequence[AreaResult]) -> str:
    lines = [("benchmark", "seconds", "CPU seconds", "load by others")]
    for result in results:
        for name, cost in result.costs.items():
            what = f"{result.name}: {name}" + " (failed)" * (name in result.failed)
            lines.append((what, f"{cost.wall:.0f}", f"{cost.cpu:.0f}", ""))
        lines.append((f"**{result.name}**", *_sum([result]), f"{result.load:.0%}"))
    return markdown([*lines, ("**all**", *_sum(results), "")])


def _sum(results: Sequence[AreaResult]) -> tuple[str, str]:
    costs = [cost for result in results for cost in result.costs.values()]
    return f"{sum(cost.wall for cost in costs):.0f}", f"{sum(cost.cpu for cost in costs):.0f}"


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
