"""Startup cost: imports, and ``--help``."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.measure import Contender, Costs, Row, at_most, compete, ms, program_cpu
from benchmarks.world import ACPX, CLAUDE_SDK, LITELLM, PROGRAMS, World

ROUNDS = 25
PEER_ROUNDS = 5


class Rival(NamedTuple):
    name: str
    said: str
    bar: float | None = None


def imports(world: World) -> list[Row]:
    """CPU time of an import, beyond that of an interpreter that imports nothing."""

    def contender(statement: str, python: str, rounds: int = ROUNDS) -> Contender:
        argv = [python, "-c", statement]
        count = world.rounds(rounds) + 1
        return Contender(lambda: program_cpu(argv, world.env, world.project), count)

    python = str(world.python)
    names = {
        "bare": contender("pass", python),
        "limit": contender("import asyncio, msgspec", python),
        "corral": contender("import corral", python),
        "used": contender("from corral import run, session, Policy", python),
    }
    for peer, module in ((CLAUDE_SDK, "claude_agent_sdk"), (LITELLM, "litellm")):
        if folder := world.peer(peer):
            names[peer] = contender(f"import {module}", str(folder / "python"), PEER_ROUNDS)
    costs = compete(names)
    rows: list[Row] = []
    for name, what in (
        ("corral", "import corral"),
        ("used", "from corral import run, session, Policy"),
    ):
        rows += [
            _row(costs, what, name, rival, over="bare")
            for rival in (
                Rival("limit", "asyncio + msgspec", 1.5),
                Rival(CLAUDE_SDK, CLAUDE_SDK),
                Rival(LITELLM, LITELLM),
            )
            if rival.name in costs
        ]
    return rows


def helps(world: World) -> list[Row]:
    """CPU time of ``--help``, the complete program."""

    def contender(argv: list[str], rounds: int = ROUNDS) -> Contender:
        count = world.rounds(rounds) + 1
        return Contender(lambda: program_cpu(argv, world.env, world.project), count)

    names = {
        "click": contender([str(world.python), str(PROGRAMS / "bare_click.py"), "--help"]),
        "corral": contender([str(world.corral), "--help"]),
    }
    for peer in (ACPX, LITELLM):
        if folder := world.peer(peer):
            names[peer] = contender([str(folder / peer), "--help"], PEER_ROUNDS)
    costs = compete(names)
    rivals = Rival("click", "bare click", 2.0), Rival(ACPX, ACPX), Rival(LITELLM, LITELLM)
    return [
        _row(costs, "corral --help", "corral", rival) for rival in rivals if rival.name in costs
    ]


def _row(costs: Costs, what: str, name: str, rival: Rival, *, over: str | None = None) -> Row:
    ratio = costs.ratio(name, rival.name, over)
    return Row(
        f"{what}, CPU",
        ms(costs.of(name, over)),
        f"{rival.said} {ms(costs.of(rival.name, over))}",
        ratio,
        None if rival.bar is None else at_most(rival.bar, ratio),
    )
