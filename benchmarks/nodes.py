"""The cost of scheduling a node: chains of nodes that do nothing, in memory."""

from __future__ import annotations

import tempfile
from functools import partial

from benchmarks.environment import LANGGRAPH, PROGRAMS, BenchEnvironment
from benchmarks.measure import Bar, Candidate, Row, at_least, measure_rounds, run_json

ROUNDS = 4
PEER_ROUNDS = 2
NODES = 10_000
PEER_NODES = 1_000
"""The peer's cost per node grows with the graph, so fewer nodes are in its favor."""
MOST = 100e-6
"""CPU seconds that a node may cost."""
MOST_WITH_FOLDER = 250e-6
"""The same with a run folder."""


def nodes(bench: BenchEnvironment) -> list[Row]:
    # All run folders are removed after the last round. ext4 does not use the inodes of files that
    # were deleted a moment ago, and searches among them: creating a file is then ten times as slow.
    with tempfile.TemporaryDirectory() as parent:
        return _nodes(bench, parent)


def _nodes(bench: BenchEnvironment, parent: str) -> list[Row]:
    def candidate(way: str, count: int, python: str, rounds: int = ROUNDS) -> Candidate:
        argv = [python, str(PROGRAMS / "nodes.py"), way, str(count), parent]
        each = partial(_each, argv, count, bench)
        return Candidate(each, bench.rounds(rounds), is_warmed=rounds == ROUNDS)

    python = str(bench.python)
    ways = {way: candidate(way, NODES, python) for way in ("corral", "scheduler", "tasks")}
    ways["folder"] = candidate("folder", PEER_NODES, python)
    ways["files"] = candidate("files", PEER_NODES, python)
    ways["small"] = candidate("corral", PEER_NODES, python)
    if folder := bench.peer(LANGGRAPH):
        peer = str(folder / "python")
        ways[LANGGRAPH] = candidate("langgraph", PEER_NODES, peer, PEER_ROUNDS)
    costs = measure_rounds(ways)
    ours = costs.of("corral")
    within = Bar(f"≤ {MOST * 1e6:g} µs", ours <= MOST)
    what = f"a node that does nothing, of {NODES:,} in a row, CPU"
    rows = [
        Row(what, _us(ours), "", None, within),
        Row(
            what,
            _us(ours),
            f"a bare asyncio task {_us(costs.of('tasks'))}",
            costs.ratio("corral", "tasks"),
        ),
        Row(
            f"the same of {PEER_NODES:,}, with a run folder",
            _us(costs.of("folder")),
            f"without {_us(costs.of('small'))}",
            costs.ratio("folder", "small"),
            Bar(f"≤ {MOST_WITH_FOLDER * 1e6:g} µs", costs.of("folder") <= MOST_WITH_FOLDER),
        ),
        Row(
            "the same",
            _us(costs.of("folder")),
            f"its files by bare system calls {_us(costs.of('files'))}",
            costs.ratio("folder", "files"),
        ),
        Row(
            "the scheduler alone",
            _us(costs.of("scheduler")),
            f"complete {_us(ours)}",
            costs.ratio("scheduler", "corral"),
        ),
        Row(
            f"a node of {NODES:,}",
            _us(ours),
            f"a node of {PEER_NODES:,} {_us(costs.of('small'))}",
            costs.ratio("corral", "small"),
        ),
    ]
    if LANGGRAPH in costs:
        speed = 1 / costs.ratio("small", LANGGRAPH)
        rows.append(
            Row(
                f"nodes per CPU s, {PEER_NODES:,} in a row",
                f"{1 / costs.of('small'):,.0f}",
                f"{LANGGRAPH} {1 / costs.of(LANGGRAPH):,.0f}",
                speed,
                at_least(10, speed),
            )
        )
    return rows


def _each(argv: list[str], count: int, bench: BenchEnvironment) -> float:
    seconds: float = run_json(argv, bench.env, bench.project)["seconds"]
    return seconds / count


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
