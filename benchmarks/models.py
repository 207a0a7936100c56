"""The cost of model calls: a streamed event, a small answer, and the imports."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.measure import (
    Contender,
    Costs,
    Row,
    at_least,
    at_most,
    compete,
    ms,
    program_cpu,
    program_says,
)
from benchmarks.world import ANTHROPIC, GENAI, LITELLM, OPENAI, PROGRAMS, World

ROUNDS = 7
EVENTS = 50_000
SINGLE_EVENTS = 500
PEER_EVENTS = 500
"""Events of a stream that a peer reads: each costs it a hundred times as much."""
COMPLETIONS = 1_000
PEER_COMPLETIONS = 200
IMPORT_ROUNDS = 11


class Wire(NamedTuple):
    name: str
    title: str
    peers: tuple[str, ...]


WIRES = (
    Wire("gemini", "Gemini", (GENAI, LITELLM)),
    Wire("anthropic", "Anthropic", (ANTHROPIC, LITELLM)),
    # litellm reads this one only if the package mcp is installed too.
    Wire("openai", "OpenAI Responses", (OPENAI,)),
    Wire("chat", "OpenAI chat", (OPENAI, LITELLM)),
)


def models(world: World) -> list[Row]:
    with _server(world) as port:
        rows = [row for wire in WIRES for row in _streams(world, wire, port)]
        rows += [row for wire in WIRES for row in _crowd(world, wire, port)]
    return rows + _imports(world)


@contextmanager
def _server(world: World) -> Generator[int]:
    argv = [str(world.python), str(PROGRAMS / "model_server.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def _caller(
    world: World, way: str, wire: Wire, port: int, *, what: str, count: int
) -> Contender | None:
    """CPU seconds of one event or one request; None for a peer that is not available."""
    python = world.python
    if way not in ("corral", "limit"):
        folder = world.peer(way)
        if folder is None:
            return None
        python = folder / "python"
    script = str(PROGRAMS / "model_calls.py")
    argv = [str(python), script, way, wire.name, str(port), what, str(count)]

    def measure() -> float:
        said = program_says(argv, world.env, world.project)
        return float(said["cpu"] / said["count"])

    return Contender(measure, world.rounds(ROUNDS) + 1)


def _compete(contenders: dict[str, Contender | None]) -> Costs:
    return compete({name: each for name, each in contenders.items() if each is not None})


def _streams(world: World, wire: Wire, port: int) -> list[Row]:
    """CPU time per event of the reading process."""
    costs = _compete(
        {
            "limit": _caller(world, "limit", wire, port, what="packed", count=EVENTS),
            "corral": _caller(world, "corral", wire, port, what="packed", count=EVENTS),
            "framed limit": _caller(world, "limit", wire, port, what="framed", count=EVENTS),
            "framed": _caller(world, "corral", wire, port, what="framed", count=EVENTS),
            "single limit": _caller(world, "limit", wire, port, what="singly", count=SINGLE_EVENTS),
            "single": _caller(world, "corral", wire, port, what="singly", count=SINGLE_EVENTS),
            **{
                peer: _caller(world, peer, wire, port, what="packed", count=PEER_EVENTS)
                for peer in wire.peers
            },
        }
    )
    rows = [
        _row(costs, f"{wire.title}: {EVENTS:,} events", "corral", "limit", 2),
        _row(costs, f"{wire.title}: one chunk each", "framed", "framed limit", 2),
        _row(costs, f"{wire.title}: each arrives alone", "single", "single limit", None),
    ]
    for peer in wire.peers:
        if peer in costs:
            ratio = costs.ratio(peer, "corral")
            rows.append(
                Row(
                    f"{wire.title}: CPU per event, {peer} ÷ corral",
                    _us(costs.of("corral")),
                    f"{peer} {_us(costs.of(peer))}",
                    ratio,
                    at_least(50 if peer == LITELLM else 10, ratio),
                )
            )
    return rows


def _row(costs: Costs, what: str, name: str, limit: str, bar: float | None) -> Row:
    ratio = costs.ratio(name, limit)
    return Row(
        f"{what}, CPU an event",
        _us(costs.of(name)),
        f"socket + msgspec {_us(costs.of(limit))}",
        ratio,
        None if bar is None else at_most(bar, ratio),
    )


def _crowd(world: World, wire: Wire, port: int) -> list[Row]:
    """Small answers per CPU second, 100 concurrent requests."""
    contenders = {
        "corral": _caller(world, "corral", wire, port, what="crowd", count=COMPLETIONS),
        "limit": _caller(world, "limit", wire, port, what="crowd", count=COMPLETIONS),
    }
    for peer in wire.peers:
        contenders[peer] = _caller(world, peer, wire, port, what="crowd", count=PEER_COMPLETIONS)
    costs = _compete(contenders)
    bars = {LITELLM: 20, "limit": None}
    rows: list[Row] = []
    for rival in (*wire.peers, "limit"):
        if rival in costs:
            ratio = costs.ratio(rival, "corral")
            bar = bars.get(rival, 8)
            rows.append(
                Row(
                    f"{wire.title}: 100 concurrent small answers, per CPU s",
                    f"{1 / costs.of('corral'):,.0f}",
                    f"{rival if rival != 'limit' else 'asyncio + msgspec'} "
                    f"{1 / costs.of(rival):,.0f}",
                    ratio,
                    None if bar is None else at_least(bar, ratio),
                )
            )
    return rows


def _imports(world: World) -> list[Row]:
    """CPU time of imports, beyond that of an interpreter that imports nothing."""

    def contender(statement: str, python: str, rounds: int = IMPORT_ROUNDS) -> Contender:
        argv = [python, "-c", statement]
        count = world.rounds(rounds) + 1
        return Contender(lambda: program_cpu(argv, world.env, world.project), count)

    own = str(world.python)
    first = (
        "from corral.models import Client, generate, stream\n"
        "import corral.system.http.client, corral.models.gemini.spec, corral.inference.api"
    )
    names = {
        "bare": contender("pass", own),
        "corral": contender("import corral", own),
        "models": contender("import corral.models", own),
        "first": contender(first, own),
    }
    modules = {GENAI: "google.genai", ANTHROPIC: "anthropic", OPENAI: "openai", LITELLM: "litellm"}
    for peer, module in modules.items():
        if folder := world.peer(peer):
            names[peer] = contender(f"import {module}", str(folder / "python"), 4)
    if folder := world.peer(LITELLM):  # which brings it along
        names["aiohttp"] = contender("import aiohttp", str(folder / "python"))
    costs = compete(names)

    def row(what: str, name: str, rival: str) -> Row:
        return Row(
            f"{what}, CPU",
            ms(costs.of(name, "bare")),
            f"{rival} {ms(costs.of(rival, 'bare'))}",
            costs.ratio(name, rival, "bare"),
        )

    imports = {"import corral": "corral", "import corral.models": "models"}
    rows = [row(what, name, "aiohttp") for what, name in imports.items() if "aiohttp" in costs]
    rivals = ("aiohttp", *modules)
    return rows + [
        row("models, HTTP and one wire format", "first", each) for each in rivals if each in costs
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"
