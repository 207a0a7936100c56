"""Reading what an agent writes: CPU a line, and memory over the length of the stream."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Contender, Row, compete, program_says
from benchmarks.world import PROGRAMS, World

ROUNDS = 5
LONG = 20_000_000


def lines(world: World) -> list[Row]:
    """µs of CPU a line, of the reading process alone."""
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
    what = f"{count:,} lines of 225 bytes, µs a line"
    # Ratios of speed, not of cost: the limit's time over ours.
    return [
        Row(
            what,
            f"{costs.of('corral'):.2f} µs",
            f"split and decode in memory {costs.of('memory'):.2f} µs",
            costs.ratio("memory", "corral"),
            at_least=0.4,
        ),
        Row(
            what,
            f"{costs.of('corral'):.2f} µs",
            f"decode alone {costs.of('ready'):.2f} µs",
            costs.ratio("ready", "corral"),
        ),
        Row(
            what,
            f"{costs.of('corral'):.2f} µs",
            f"asyncio readline + json {costs.of('readline'):.2f} µs",
            costs.ratio("readline", "corral"),
        ),
        Row(
            "200,000 lines, a fifth of them tool calls",
            f"{costs.of('tools'):.2f} µs",
            f"split and decode in memory {costs.of('tools limit'):.2f} µs",
            costs.ratio("tools limit", "tools"),
        ),
    ]


def long_line(world: World) -> list[Row]:
    """One line of 20 MB; asyncio's own readline takes none over 64 KiB."""
    file = world.long_line(LONG)
    costs = compete(
        {
            "corral": _contender(world, "corral", file, per=1),
            "memory": _contender(world, "memory", file, per=1),
        }
    )
    failed = "error" in _says(world, "readline", file)
    rows = [
        Row(
            "one line of 20 MB, CPU",
            f"{costs.of('corral') * 1e-3:.0f} ms",
            f"decode in memory {costs.of('memory') * 1e-3:.0f} ms",
            costs.ratio("memory", "corral"),
        )
    ]
    if failed:
        rows.append(Row("one line of 20 MB", "read", "asyncio readline + json: fails"))
    return rows


def memory(world: World) -> list[Row]:
    """The most memory that the reading process ever had."""
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
            at_most=1.1,
        )
        for size in sizes[1:]
    ]


def _contender(world: World, way: str, file: Path, per: int | None = None) -> Contender:
    def measure() -> float:
        said = _says(world, way, file)
        return float(said["cpu"]) * 1e6 / (per or int(said["count"]))

    return Contender(measure, world.rounds(ROUNDS) + 1)


def _says(world: World, way: str, file: Path) -> dict[str, Any]:
    argv = [world.python, PROGRAMS / "stream.py", way, file]
    return program_says(argv, world.env, world.project)
