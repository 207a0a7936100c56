"""How fast corral is, against the limit and against named peers; see README.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def main() -> None:
    from benchmarks import page
    from benchmarks.areas import AREAS
    from benchmarks.environment import CACHE, BenchEnvironment
    from benchmarks.measure import Row, progress, table
    from benchmarks.plots import write_plots

    every = [name for benchmarks in AREAS.values() for name in benchmarks]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"an area or a benchmark: {', '.join(every)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds; only peers that are installed already"
    )
    parser.add_argument(
        "--page", action="store_true", help="update docs/performance.md and its charts"
    )
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in every and name not in AREAS]:
        parser.error(f"unknown benchmark {unknown[0]}; there are: {', '.join(every)}")
    chosen = {
        area: [name for name in all_of_it if {name, area} & set(given.names) or not given.names]
        for area, all_of_it in AREAS.items()
    }
    if given.page and (
        parts := [area for area in AREAS if chosen[area] and [*AREAS[area]] != chosen[area]]
    ):
        parser.error(f"--page needs complete areas: {parts[0]} is {', '.join(AREAS[parts[0]])}")
    bench = BenchEnvironment(quick=given.quick)
    areas: dict[str, list[Row]] = {}
    began = time.monotonic()
    for area, names in chosen.items():
        for name in names:
            started = time.monotonic()
            progress(f"{name} ")
            areas.setdefault(area, []).extend(AREAS[area][name](bench))
            progress(f"{name} took {time.monotonic() - started:.0f} s\n")
    rows = [row for area in areas.values() for row in area]
    print(table(rows))
    missed = sum("MISSED" in row.cells() for row in rows)
    print(f"\n{missed} missed." if missed else "\nEvery bar is met.")
    progress(f"{(time.monotonic() - began) / 60:.1f} minutes\n")
    for file in write_plots(areas, CACHE / "plots"):
        progress(f"{file}\n")
    if given.page:
        page.update(page.PAGE, areas)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    main()
