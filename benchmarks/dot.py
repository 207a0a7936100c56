"""Parsing and linting a pipeline of 10,000 nodes, against other Graphviz parsers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.measure import Contender, Row, at_least, at_most, compete, ms, program_says
from benchmarks.world import PROGRAMS, World

NODES = 10_000
ROUNDS = 9
PEERS = {
    "pygraphviz": "pygraphviz (libcgraph, C)",
    "lark": "lark, LALR",
    "pydot": "pydot",
}


def dot(world: World) -> list[Row]:
    file = world.pipeline(NODES)
    pythons: dict[str, Path] = {}
    for name in PEERS:
        found = world.peer(name)
        if found is not None:
            pythons[name] = found / "python"

    def contender(python: Path, way: str, rounds: int) -> Contender:
        argv = [str(python), str(PROGRAMS / "dot.py"), way, str(file)]
        return Contender(lambda: float(program_says(argv, world.env, world.project)["cpu"]), rounds)

    contenders = {
        "corral": contender(world.python, "corral", world.rounds(ROUNDS)),
        "lint": contender(world.python, "corral-lint", world.rounds(ROUNDS)),
    }
    for name, python in pythons.items():
        rounds = world.rounds(ROUNDS) if name == "pygraphviz" else 1
        contenders[name] = contender(python, name, rounds)
    if "pydot" in contenders:
        contenders["pydot"] = Contender(cache(contenders["pydot"].measure), 1)
    costs = compete(contenders)
    parse, lint = f"parse {NODES:,} nodes", f"parse and lint {NODES:,} nodes"
    rows: list[Row] = []
    for name, title in PEERS.items():
        if name not in costs:
            continue
        rival = f"{title} {ms(costs.of(name))}"
        ratio, linted = costs.ratio("corral", name), costs.ratio("lint", name)
        bar = at_most(2, ratio) if name == "pygraphviz" else None
        rows.append(Row(parse, ms(costs.of("corral")), rival, ratio, bar))
        times = 1 / linted
        if name == "pydot":
            whole = Row(
                f"{lint}, times faster", ms(costs.of("lint")), rival, times, at_least(50, times)
            )
            rows.append(whole)
        else:
            rows.append(Row(lint, ms(costs.of("lint")), rival, linted))
    return [*rows, *_grows(world), *_memory(world, pythons)]


def _grows(world: World) -> list[Row]:
    """The cost of ten times as many nodes."""
    small, large = world.pipeline(NODES), world.pipeline(NODES * 10)

    def cost(file: Path) -> float:
        argv = [str(world.python), str(PROGRAMS / "dot.py"), "corral-lint", str(file)]
        return float(program_says(argv, world.env, world.project)["cpu"])

    costs = compete(
        {
            "large": Contender(lambda: cost(large), world.rounds(4)),
            "small": Contender(lambda: cost(small), world.rounds(4)),
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


def _memory(world: World, pythons: dict[str, Path]) -> list[Row]:
    """Peak memory of the process, including its interpreter and libraries."""
    file = str(world.pipeline(NODES))

    def peak(python: Path, way: str) -> float:
        argv = [str(python), str(PROGRAMS / "dot.py"), way, file]
        return float(program_says(argv, world.env, world.project)["peak"])

    ours = peak(world.python, "corral")
    rows: list[Row] = []
    for name, python in pythons.items():
        if name == "pydot":  # minutes, for a figure that nobody waits for
            continue
        theirs = peak(python, name)
        rival = f"{PEERS[name]} {theirs / 1e6:.0f} MB"
        rows.append(
            Row(f"peak memory, {NODES:,} nodes", f"{ours / 1e6:.0f} MB", rival, ours / theirs)
        )
    return rows
