"""Reading an agent's output: CPU time per line, and memory over the length of the stream."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import PROGRAMS, BenchEnvironment
from benchmarks.measure import Candidate, Row, at_least, at_most, measure_rounds, run_json

ROUNDS = 4
LONG = 20_000_000


def lines(bench: BenchEnvironment) -> list[Row]:
    """Lines per CPU second of the reading process."""
    count = 200_000 if bench.quick else 1_000_000
    short = bench.stream(100_000)
    plain, tools = bench.stream(count), bench.stream(200_000, tools=True)
    costs = measure_rounds(
        {
            "corral": _candidate(bench, "corral", plain),
            "memory": _candidate(bench, "memory", plain),
            "ready": _candidate(bench, "ready-lines", plain),
            "readline": _candidate(bench, "readline", short),
            "tools": _candidate(bench, "corral", tools),
            "tools limit": _candidate(bench, "memory", tools),
        }
    )
    what = f"{count:,} lines of 225 bytes, k lines per CPU s"
    with_tools = costs.ratio("tools", "tools limit")
    ours, ratio = _rate(costs.of("corral")), costs.ratio("corral", "memory")
    return [
        Row(
            what,
            ours,
            f"split and decode in memory {_rate(costs.of('memory'))}",
            ratio,
            at_least(0.4, ratio),
        ),
        Row(
            what,
            ours,
            f"decode of ready lines {_rate(costs.of('ready'))}",
            costs.ratio("corral", "ready"),
        ),
        Row(
            what,
            ours,
            f"asyncio readline + json {_rate(costs.of('readline'))}",
            costs.ratio("corral", "readline"),
        ),
        Row(
            "200,000 lines, a fifth of them tool calls",
            _rate(costs.of("tools")),
            f"split and decode in memory {_rate(costs.of('tools limit'))}",
            with_tools,
            at_least(0.5, with_tools),
        ),
    ]


def long_line(bench: BenchEnvironment) -> list[Row]:
    """One line of 20 MB; asyncio's readline accepts none over 64 KiB."""
    file = bench.long_line(LONG)
    costs = measure_rounds(
        {
            "corral": _candidate(bench, "corral", file),
            "memory": _candidate(bench, "memory", file),
        }
    )
    scale = LONG / 1e6 / 3  # three lines, of which one has all the bytes
    rows = [
        Row(
            "one line of 20 MB, MB per CPU s",
            f"{costs.of('corral') * scale:,.0f}",
            f"split and decode in memory {costs.of('memory') * scale:,.0f}",
            costs.ratio("corral", "memory"),
        )
    ]
    if "error" in _figures(bench, "readline", file):
        rows.append(Row("one line of 20 MB", "is read", "asyncio readline + json: fails"))
    return rows


def memory(bench: BenchEnvironment) -> list[Row]:
    """Peak memory of the reading process."""
    sizes = {10_000: 3, 100_000: 2} | ({} if bench.quick else {1_000_000: 1})
    peaks = {
        size: median(_figures(bench, "corral", bench.stream(size))["peak"] for _ in range(rounds))
        for size, rounds in sizes.items()
    }
    least, *others = sizes
    first = peaks[least]
    return [
        Row(
            f"peak memory, {size:,} lines",
            f"{peaks[size] / 1e6:.1f} MB",
            f"{least:,} lines {first / 1e6:.1f} MB",
            peaks[size] / first,
            at_most(1.1, peaks[size] / first),
        )
        for size in others
    ]


def _candidate(bench: BenchEnvironment, way: str, file: Path) -> Candidate:
    """Lines per CPU second. The start is not part of it: ``instant`` measures it."""

    def measure() -> float:
        figures = _figures(bench, way, file)
        return float(int(figures["count"]) / float(figures["reading"]))

    return Candidate(measure, bench.rounds(ROUNDS), is_warmed=False)


def _rate(lines_a_second: float) -> str:
    return f"{lines_a_second / 1000:,.0f} k"


def _figures(bench: BenchEnvironment, way: str, file: Path) -> dict[str, Any]:
    argv = [str(bench.python), str(PROGRAMS / "stream.py"), way, str(file)]
    return run_json(argv, bench.env, bench.project)
