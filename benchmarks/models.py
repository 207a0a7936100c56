"""The cost of model calls: a streamed event, a small answer, and the imports."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.environment import ANTHROPIC, GENAI, LITELLM, OPENAI, PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Candidate,
    Costs,
    Row,
    at_least,
    at_most,
    measure_rounds,
    ms,
    program_cpu,
    run_json,
)

ROUNDS = 5
PEER_ROUNDS = 1
"""Rounds in which a peer takes part: most of its time is its import."""
EVENTS = 50_000
SINGLE_EVENTS = 500
PEER_EVENTS = 500
"""Events of a stream that a peer reads: each costs it a hundred times as much."""
COMPLETIONS = 1_000
PEER_COMPLETIONS = 200
IMPORT_ROUNDS = 6


OWN = ("corral", "limit", "loop-limit")
"""Callers that run in the environment of corral."""


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


def models(bench: BenchEnvironment) -> list[Row]:
    with model_server(bench) as port:
        rows = [row for wire in WIRES for row in _streams(bench, wire, port)]
        rows += [row for wire in WIRES for row in _concurrent(bench, wire, port)]
    return rows + _imports(bench)


@contextmanager
def model_server(bench: BenchEnvironment) -> Generator[int]:
    argv = [str(bench.python), str(PROGRAMS / "model_server.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def _caller(
    bench: BenchEnvironment, way: str, wire: Wire, port: int, *, what: str, count: int
) -> Candidate | None:
    """CPU seconds of one event or one request; None for a peer that is not available."""
    python = bench.python
    if way not in OWN:
        folder = bench.peer(way)
        if folder is None:
            return None
        python = folder / "python"
    script = str(PROGRAMS / "model_calls.py")
    argv = [str(python), script, way, wire.name, str(port), what, str(count)]

    def measure() -> float:
        figures = run_json(argv, bench.env, bench.project)
        return float(figures["cpu"] / figures["count"])

    rounds = ROUNDS if way in OWN else PEER_ROUNDS
    return Candidate(measure, bench.rounds(rounds) + 1)


def _measure_rounds(candidates: dict[str, Candidate | None]) -> Costs:
    return measure_rounds({name: each for name, each in candidates.items() if each is not None})


def _streams(bench: BenchEnvironment, wire: Wire, port: int) -> list[Row]:
    """CPU time per event of the reading process."""
    costs = _measure_rounds(
        {
            "limit": _caller(bench, "limit", wire, port, what="packed", count=EVENTS),
            "corral": _caller(bench, "corral", wire, port, what="packed", count=EVENTS),
            "framed limit": _caller(bench, "limit", wire, port, what="framed", count=EVENTS),
            "framed": _caller(bench, "corral", wire, port, what="framed", count=EVENTS),
            "single limit": _caller(bench, "limit", wire, port, what="singly", count=SINGLE_EVENTS),
            "single loop limit": _caller(
                bench, "loop-limit", wire, port, what="singly", count=SINGLE_EVENTS
            ),
            "single": _caller(bench, "corral", wire, port, what="singly", count=SINGLE_EVENTS),
            **{
                peer: _caller(bench, peer, wire, port, what="packed", count=PEER_EVENTS)
                for peer in wire.peers
            },
        }
    )
    rows = [
        _row(costs, f"{wire.title}: {EVENTS:,} events", "corral", "limit", 2),
        _row(costs, f"{wire.title}: one chunk each", "framed", "framed limit", 2),
        _row(costs, f"{wire.title}: each arrives alone", "single", "single limit", None),
        _row(costs, f"{wire.title}: each arrives alone", "single", "single loop limit", 1.5),
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
    title = "asyncio protocol" if limit == "single loop limit" else "socket"
    return Row(
        f"{what}, CPU an event",
        _us(costs.of(name)),
        f"{title} + msgspec {_us(costs.of(limit))}",
        ratio,
        None if bar is None else at_most(bar, ratio),
    )


def _concurrent(bench: BenchEnvironment, wire: Wire, port: int) -> list[Row]:
    """Small answers per CPU second, 100 concurrent requests."""
    candidates = {
        "corral": _caller(bench, "corral", wire, port, what="concurrent", count=COMPLETIONS),
        "limit": _caller(bench, "limit", wire, port, what="concurrent", count=COMPLETIONS),
    }
    for peer in wire.peers:
        candidates[peer] = _caller(
            bench, peer, wire, port, what="concurrent", count=PEER_COMPLETIONS
        )
    costs = _measure_rounds(candidates)
    bars = {LITELLM: 20, "limit": 0.6}
    rows: list[Row] = []
    for baseline in (*wire.peers, "limit"):
        if baseline in costs:
            ratio = costs.ratio(baseline, "corral")
            bar = bars.get(baseline, 8)
            rows.append(
                Row(
                    f"{wire.title}: 100 concurrent small answers, per CPU s",
                    f"{1 / costs.of('corral'):,.0f}",
                    f"{baseline if baseline != 'limit' else 'asyncio + msgspec'} "
                    f"{1 / costs.of(baseline):,.0f}",
                    ratio,
                    at_least(bar, ratio),
                )
            )
    return rows


def _imports(bench: BenchEnvironment) -> list[Row]:
    """CPU time of imports, beyond that of an interpreter that imports nothing."""

    def candidate(statement: str, python: str, rounds: int = IMPORT_ROUNDS) -> Candidate:
        argv = [python, "-c", statement]
        count = bench.rounds(rounds) + 1
        return Candidate(lambda: program_cpu(argv, bench.env, bench.project), count)

    own = str(bench.python)
    first = (
        "from corral.models import Client, generate, stream\n"
        "import corral.system.http.client, corral.models.gemini.spec, corral.inference.api"
    )
    names = {
        "bare": candidate("pass", own),
        "corral": candidate("import corral", own),
        "models": candidate("import corral.models", own),
        "first": candidate(first, own),
    }
    modules = {GENAI: "google.genai", ANTHROPIC: "anthropic", OPENAI: "openai", LITELLM: "litellm"}
    for peer, module in modules.items():
        if folder := bench.peer(peer):
            names[peer] = candidate(f"import {module}", str(folder / "python"), PEER_ROUNDS)
    if folder := bench.peer(LITELLM):  # which brings it along
        names["aiohttp"] = candidate("import aiohttp", str(folder / "python"))
    costs = measure_rounds(names)

    def row(what: str, name: str, baseline: str) -> Row:
        return Row(
            f"{what}, CPU",
            ms(costs.of(name, "bare")),
            f"{baseline} {ms(costs.of(baseline, 'bare'))}",
            costs.ratio(name, baseline, "bare"),
        )

    imports = {"import corral": "corral", "import corral.models": "models"}
    rows = [row(what, name, "aiohttp") for what, name in imports.items() if "aiohttp" in costs]
    baselines = ("aiohttp", *modules)
    return rows + [
        row("models, HTTP and one wire format", "first", each)
        for each in baselines
        if each in costs
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"
