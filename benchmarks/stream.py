"""Reading an agent's output: CPU time per line, and memory over the length of the stream."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Contender, Row, at_least, at_most, compete, program_says
from benchmarks.world import PROGRAMS, World

ROUNDS = 5
LONG = 20_000_000


def lines(world: World) -> list[Row]:
    """Lines per CPU second of the reading process."""
    count = 200_000 if world.quick else 1_000_000
    short = world.stream(100_000)
    whole, tools = world.stream(count), world.stream(200_000, tools=True)
    costs = compete(
        {
            "corral": _contender(world, "corral", whole),
            "memory": _contender(world, "memory", whole),
            "ready": _contender(world, "ready-lines", whole),
            "readline": _contender(world, "readline", short),
            "tools": _contender(world, "corral", tools),
            "tools limit": _contender(world, "memory", tools),
        }
    )
    what = f"{count:,} lines of 225 bytes, k lines per CPU s"
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
            costs.ratio("tools", "tools limit"),
        ),
    ]


def long_line(world: World) -> list[Row]:
    """One line of 20 MB; asyncio's readline accepts none over 64 KiB."""
    file = world.long_line(LONG)
    costs = compete(
        {
            "corral": _contender(world, "corral", file),
            "memory": _contender(world, "memory", file),
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
    if "error" in _says(world, "readline", file):
        rows.append(Row("one line of 20 MB", "is read", "asyncio readline + json: fails"))
    return rows


def memory(world: World) -> list[Row]:
    """Peak memory of the reading process."""
    sizes = (10_000, 100_000) if world.quick else (10_000, 100_000, 1_000_000)
    peaks = {
        size: median(_says(world, "corral", world.stream(size))["peak"] for _ in range(3))
        for size in sizes
    }
    first = peaks[sizes[0]]
    return [
        Row(
            f"peak memory, {size:,} lines",
            f"{peaks[size] / 1e6:.1f} MB",
            f"{sizes[0]:,} lines {first / 1e6:.1f} MB",
            peaks[size] / first,
            at_most(1.1, peaks[size] / first),
        )
        for size in sizes[1:]
    ]


def _contender(world: World, way: str, file: Path) -> Contender:
    """Lines per CPU second."""

    def measure() -> float:
        said = _says(world, way, file)
        return float(int(said["count"]) / float(said["cpu"]))

    return Contender(measure, world.rounds(ROUNDS) + 1)


def _rate(lines_a_second: float) -> str:
    return f"{lines_a_second / 1000:,.0f} k"


def _says(world: World, way: str, file: Path) -> dict[str, Any]:
    argv = [str(world.python), str(PROGRAMS / "stream.py"), way, str(file)]
    return program_says(argv, world.env, world.project)
