"""Many processes: concurrent agents, and ending process trees."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.measure import Bar, Row, ms, program_says, tell
from benchmarks.world import PROGRAMS, World

CROWD = 200
CROWD_ROUNDS = 3
THREADS = 8
"""asyncio's own thread pool for file access, and the main thread."""
KINDS = ("plain", "setsid", "double-fork", "ignores-TERM")
TREES = 100
PEER_TREES = 25


def crowd(world: World) -> list[Row]:
    """200 agents in one process, each of which sleeps for a second between its first line
    and the others."""
    python, file = str(world.python), str(world.stream(10))

    def says(way: str) -> dict[str, Any]:
        argv = [python, str(PROGRAMS / "crowd.py"), way, str(CROWD), file, str(world.project)]
        return program_says(argv, world.env, world.project)

    rounds: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(world.rounds(CROWD_ROUNDS)):
        rounds.append((says("corral"), says("asyncio")))
        tell(".")
    tell("\n")

    def row(what: str, name: str, show: Callable[[float], str], bar: Bar | None = None) -> Row:
        ours, theirs = (median(pair[at][name] for pair in rounds) for at in (0, 1))
        ratio = median(a[name] / b[name] for a, b in rounds)
        whole = f"{CROWD} concurrent agents: {what}"
        return Row(whole, show(ours), f"bare asyncio {show(theirs)}", ratio, bar)

    most = max(pair[0]["threads"] for pair in rounds)
    return [
        row("wall", "wall", lambda value: f"{value:.1f} s"),
        row("parent's CPU a run", "cpu", ms),
        row(
            "threads", "threads", lambda value: f"{value:.0f}", Bar(f"≤ {THREADS}", most <= THREADS)
        ),
        row("peak memory", "peak", lambda value: f"{value / 1e6:.0f} MB"),
    ]


def trees(world: World) -> list[Row]:
    """Ending process trees: in how many tries a process survives, and how long it takes.
    Those that ignore SIGTERM have a grace period of 100 ms."""

    def says(way: str, kind: str, count: int) -> dict[str, Any]:
        argv = [str(world.python), str(PROGRAMS / "trees.py"), way, kind, str(count)]
        return program_says(argv, world.env, world.project)

    def cell(said: dict[str, Any]) -> str:
        tries = len(said["times"])
        return f"{said['survived']} of {tries} in {median(said['times']) * 1000:.1f} ms"

    rows: list[Row] = []
    for kind in KINDS:
        ours = says("corral", kind, world.rounds(TREES))
        for way, name in (("asyncio", "terminate, kill"), ("killpg", "killpg")):
            theirs = says(way, kind, world.rounds(PEER_TREES))
            rows.append(
                Row(
                    f"survivors of a tree: {kind}",
                    cell(ours),
                    f"{name} {cell(theirs)}",
                    median(ours["times"]) / median(theirs["times"]),
                    Bar("0 survive", ours["survived"] == 0),
                )
            )
        tell(".")
    tell("\n")
    return rows
