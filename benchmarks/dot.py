"""Parsing and linting a pipeline of 10,000 nodes, against other Graphviz parsers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.environment import PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Candidate,
    Costs,
    Group,
    Row,
    at_least,
    at_most,
    measure_groups,
    measure_rounds,
    ms,
    run_json,
)

NODES = 10_000
ROUNDS = 6
PEER_ROUNDS = 2
SLOW_NODES = 500
"""Nodes that pydot reads, which takes seconds; its figure is multiplied."""
PEERS = {
    "pygraphviz": "pygraphviz (libcgraph, C)",
    "lark": "lark, LALR",
    "pydot": "pydot",
}


def dot(bench: BenchEnvironment) -> list[Row]:
    pythons: dict[str, Path] = {}
    for name in PEERS:
        found = bench.peer(name)
        if found is not None:
            pythons[name] = found / "python"

    def group(python: Path, way: str, rounds: int, nodes: int = NODES) -> Group:
        argv = [str(python), str(PROGRAMS / "dot.py"), way, str(bench.pipeline(nodes))]

        def measure() -> dict[str, float]:
            found = run_json(argv, bench.env, bench.project)
            return {way: found["cpu"] * NODES / nodes, f"{way} peak": found["peak"]}

        return Group(measure, bench.rounds(rounds), is_warmed=False)

    groups = [group(bench.python, way, ROUNDS) for way in ("corral", "corral-lint")]
    for name, python in pythons.items():
        if name == "pydot":
            groups.append(group(python, name, 1, SLOW_NODES))
        else:
            groups.append(group(python, name, ROUNDS if name == "pygraphviz" else PEER_ROUNDS))
    costs = measure_groups(groups)
    rows = [row for name in pythons for row in _compared(costs, name)]
    return [*rows, *_grows(bench), *(_memory(costs, name) for name in pythons if name != "pydot")]


def _compared(costs: Costs, peer: str) -> list[Row]:
    parse, lint = f"parse {NODES:,} nodes", f"parse and lint {NODES:,} nodes"
    ours, linted = ms(costs.of("corral")), ms(costs.of("corral-lint"))
    baseline = f"{PEERS[peer]} {ms(costs.of(peer))}"
    ratio, lint_ratio = costs.ratio("corral", peer), costs.ratio("corral-lint", peer)
    if peer == "pydot":
        baseline += f", from {SLOW_NODES:,} nodes"
        times = 1 / lint_ratio
        second = Row(f"{lint}, times faster", linted, baseline, times, at_least(50, times))
    else:
        second = Row(lint, linted, baseline, lint_ratio)
    bar = at_most(2, ratio) if peer == "pygraphviz" else None
    return [Row(parse, ours, baseline, ratio, bar), second]


def _grows(bench: BenchEnvironment) -> list[Row]:
    """The cost of ten times as many nodes."""
    small, large = bench.pipeline(NODES), bench.pipeline(NODES * 10)

    def cost(file: Path) -> float:
        argv = [str(bench.python), str(PROGRAMS / "dot.py"), "corral-lint", str(file)]
        return float(run_json(argv, bench.env, bench.project)["cpu"])

    costs = measure_rounds(
        {
            "large": Candidate(lambda: cost(large), 2, is_warmed=False),
            "small": Candidate(lambda: cost(small), 2, is_warmed=False),
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


def _memory(costs: Costs, peer: str) -> Row:
    """Peak memory of the process, including its interpreter and libraries."""
    ours, theirs = costs.of("corral peak"), costs.of(f"{peer} peak")
    baseline = f"{PEERS[peer]} {theirs / 1e6:.0f} MB"
    return Row(f"peak memory, {NODES:,} nodes", f"{ours / 1e6:.0f} MB", baseline, ours / theirs)
