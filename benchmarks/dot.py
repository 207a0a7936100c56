"""Parsing and linting a pipeline of 10,000 nodes, against other Graphviz parsers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.environment import PROGRAMS, BenchEnvironment
from benchmarks.measure import Candidate, Row, at_least, at_most, measure_rounds, ms, run_json

NODES = 10_000
ROUNDS = 9
PEERS = {
    "pygraphviz": "pygraphviz (libcgraph, C)",
    "lark": "lark, LALR",
    "pydot": "pydot",
}


def dot(bench: BenchEnvironment) -> list[Row]:
    file = bench.pipeline(NODES)
    pythons: dict[str, Path] = {}
    for name in PEERS:
        found = bench.peer(name)
        if found is not None:
            pythons[name] = found / "python"

    def candidate(python: Path, way: str, rounds: int) -> Candidate:
        argv = [str(python), str(PROGRAMS / "dot.py"), way, str(file)]
        return Candidate(lambda: float(run_json(argv, bench.env, bench.project)["cpu"]), rounds)

    candidates = {
        "corral": candidate(bench.python, "corral", bench.rounds(ROUNDS)),
        "lint": candidate(bench.python, "corral-lint", bench.rounds(ROUNDS)),
    }
    for name, python in pythons.items():
        rounds = bench.rounds(ROUNDS) if name == "pygraphviz" else 1
        candidates[name] = candidate(python, name, rounds)
    if "pydot" in candidates:
        candidates["pydot"] = Candidate(cache(candidates["pydot"].measure), 1)
    costs = measure_rounds(candidates)
    parse, lint = f"parse {NODES:,} nodes", f"parse and lint {NODES:,} nodes"
    rows: list[Row] = []
    for name, title in PEERS.items():
        if name not in costs:
            continue
        baseline = f"{title} {ms(costs.of(name))}"
        ratio, linted = costs.ratio("corral", name), costs.ratio("lint", name)
        bar = at_most(2, ratio) if name == "pygraphviz" else None
        rows.append(Row(parse, ms(costs.of("corral")), baseline, ratio, bar))
        times = 1 / linted
        if name == "pydot":
            row = Row(
                f"{lint}, times faster", ms(costs.of("lint")), baseline, times, at_least(50, times)
            )
            rows.append(row)
        else:
            rows.append(Row(lint, ms(costs.of("lint")), baseline, linted))
    return [*rows, *_grows(bench), *_memory(bench, pythons)]


def _grows(bench: BenchEnvironment) -> list[Row]:
    """The cost of ten times as many nodes."""
    small, large = bench.pipeline(NODES), bench.pipeline(NODES * 10)

    def cost(file: Path) -> float:
        argv = [str(bench.python), str(PROGRAMS / "dot.py"), "corral-lint", str(file)]
        return float(run_json(argv, bench.env, bench.project)["cpu"])

    costs = measure_rounds(
        {
            "large": Candidate(lambda: cost(large), bench.rounds(4)),
            "small": Candidate(lambda: cost(small), bench.rounds(4)),
        }
    )
    ratio = costs.ratio("large", "small")
    ten = f"{NODES:,} nodes {ms(costs.of('small'))}"
    return [
        Row(
            f"parse and lint {NODES * 10:,} nodes",
            ms(costs.of("large")),
            ten,
            ratio,
            at_most(15, ratio),
        )
    ]


def _memory(bench: BenchEnvironment, pythons: dict[str, Path]) -> list[Row]:
    """Peak memory of the process, including its interpreter and libraries."""
    file = str(bench.pipeline(NODES))

    def peak(python: Path, way: str) -> float:
        argv = [str(python), str(PROGRAMS / "dot.py"), way, file]
        return float(run_json(argv, bench.env, bench.project)["peak"])

    ours = peak(bench.python, "corral")
    rows: list[Row] = []
    for name, python in pythons.items():
        if name == "pydot":  # minutes, too long for this figure
            continue
        theirs = peak(python, name)
        baseline = f"{PEERS[name]} {theirs / 1e6:.0f} MB"
        rows.append(
            Row(f"peak memory, {NODES:,} nodes", f"{ours / 1e6:.0f} MB", baseline, ours / theirs)
        )
    return rows
