"""How fast corral is, against the limit and against named peers; see README.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def main() -> None:
    from benchmarks import (
        acp,
        dot,
        durable,
        fleet,
        growth,
        models,
        nodes,
        processes,
        proxy,
        runs,
        sessions,
        startup,
        stream,
        view,
    )
    from benchmarks.environment import CACHE, BenchEnvironment
    from benchmarks.measure import Row, progress, table
    from benchmarks.plots import write_plots

    every = {
        "import": startup.imports,
        "help": startup.helps,
        "lines": stream.lines,
        "long-line": stream.long_line,
        "memory": stream.memory,
        "instant": runs.instant,
        "sandbox": runs.sandbox,
        "real": runs.real,
        "concurrent": processes.concurrent,
        "trees": processes.trees,
        "acp": acp.acp,
        "warm": sessions.warm,
        "search": sessions.search,
        "listed": sessions.listed,
        "record": sessions.record,
        "models": models.models,
        "proxy": proxy.proxy,
        "nodes": nodes.nodes,
        "dot": dot.dot,
        "durable": durable.durable,
        "view": view.view,
        "growth": growth.growth,
        "fleet": fleet.fleet,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(every)}")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds; only peers that are installed already"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="where the charts go (.cache/bench/plots)"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in every]:
        parser.error(f"unknown benchmark {unknown[0]}; there are: {', '.join(every)}")
    bench = BenchEnvironment(quick=given.quick)
    areas: dict[str, list[Row]] = {}
    for name in given.names or every:
        started = time.monotonic()
        progress(f"{name} ")
        areas[name] = every[name](bench)
        progress(f"{name} took {time.monotonic() - started:.0f} s\n")
    rows = [row for area in areas.values() for row in area]
    print(table(rows))
    missed = sum("MISSED" in row.cells() for row in rows)
    print(f"\n{missed} missed." if missed else "\nEvery bar is met.")
    for file in write_plots(areas, given.plots or CACHE / "plots"):
        progress(f"{file}\n")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    main()
