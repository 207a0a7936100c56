"""The cost of model calls: a streamed event, a small answer, the HTTP client, and the imports."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.environment import (
    ANTHROPIC,
    GENAI,
    HTTP_CLIENTS,
    LITELLM,
    OPENAI,
    PROGRAMS,
    BenchEnvironment,
)
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
    program_cpu,
    run_json,
)

ROUNDS = 4
PEER_ROUNDS = 1
"""Rounds of a peer, one process for all its calls: it costs ten times as much or more, and most of
its time is its import."""
EVENTS = 50_000
SINGLE_EVENTS = 500
PEER_EVENTS = 500
"""Events of a stream that a peer reads: each costs it a hundred times as much."""
COMPLETIONS = 1_000
CLIENT_EVENTS = 20_000
"""Events that an HTTP client reads without decoding them."""
PEER_COMPLETIONS = 200
IMPORT_ROUNDS = 6


OWN = ("limit", "corral", "loop-limit")
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
        costs = _costs(bench, port)
        clients = _http_clients(bench, port)
    rows = [row for wire in WIRES for row in _streams(costs, wire)]
    rows += [row for wire in WIRES for row in _concurrent(costs, wire)]
    return rows + clients + _imports(bench)


@contextmanager
def model_server(bench: BenchEnvironment) -> Generator[int]:
    argv = [str(bench.python), str(PROGRAMS / "model_server.py")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def _costs(bench: BenchEnvironment, port: int) -> Costs:
    """CPU seconds of one event or one answer, by ``WAY WIRE:WHAT``."""
    groups: list[Group] = []
    for wire in WIRES:
        for what, count, ways in (
            ("packed", EVENTS, OWN[:2]),
            ("framed", EVENTS, OWN[:2]),
            ("singly", SINGLE_EVENTS, OWN),
            ("concurrent", COMPLETIONS, OWN[:2]),
        ):
            # Each in its own process: the limit is a third faster after other calls.
            call = f"{wire.name}:{what}:{count}"
            groups += [_caller(bench.python, bench, way, port, [call]) for way in ways]
    for peer in (GENAI, ANTHROPIC, OPENAI, LITELLM):
        if folder := bench.peer(peer):
            calls = [
                f"{wire.name}:{what}:{count}"
                for wire in WIRES
                if peer in wire.peers
                for what, count in (("packed", PEER_EVENTS), ("concurrent", PEER_COMPLETIONS))
            ]
            groups.append(_caller(folder / "python", bench, peer, port, calls))
    return measure_groups(groups)


def _http_clients(bench: BenchEnvironment, port: int) -> list[Row]:
    """The HTTP client beside aiohttp and httpcore, which read the same bytes and no JSON."""
    pythons = {"corral": bench.python}
    if folder := bench.peer(HTTP_CLIENTS):
        pythons |= dict.fromkeys(("aiohttp", "httpcore"), folder / "python")

    def group(client: str, python: Path) -> Group:
        program = str(PROGRAMS / "http_clients.py")
        argv = [str(python), program, client, str(port), str(COMPLETIONS), str(CLIENT_EVENTS)]

        def measure() -> dict[str, float]:
            found = run_json(argv, bench.env, bench.project)
            return {f"{client} {what}": float(cpu) for what, cpu in found.items()}

        return Group(measure, bench.rounds(ROUNDS), is_warmed=False)

    costs = measure_groups([group(client, python) for client, python in pythons.items()])
    return [
        Row(
            f"HTTP client: CPU per {what}, {client} ÷ corral",
            _us(costs.of(f"corral {what}")),
            f"{client} {_us(costs.of(f'{client} {what}'))}",
            costs.ratio(f"{client} {what}", f"corral {what}"),
        )
        for what in ("request", "event")
        for client in ("aiohttp", "httpcore")
        if client in pythons
    ]


def _caller(
    python: Path, bench: BenchEnvironment, way: str, port: int, calls: Sequence[str]
) -> Group:
    """One process for these calls."""
    argv = [str(python), str(PROGRAMS / "model_calls.py"), way, str(port), *calls]

    def measure() -> dict[str, float]:
        found = run_json(argv, bench.env, bench.project)
        return {f"{way} {what}": float(cpu) for what, cpu in found.items()}

    if way in OWN:
        return Group(measure, bench.rounds(ROUNDS), is_warmed=False)
    return Group(measure, PEER_ROUNDS, is_warmed=False)


def _streams(costs: Costs, wire: Wire) -> list[Row]:
    """CPU time per event of the reading process."""
    packed, framed, singly = (f"{wire.name}:{what}" for what in ("packed", "framed", "singly"))
    rows = [
        _row(costs, f"{wire.title}: {EVENTS:,} events", packed, "limit", 2),
        _row(costs, f"{wire.title}: one chunk each", framed, "limit", 2),
        _row(costs, f"{wire.title}: each arrives alone", singly, "limit", None),
        _row(costs, f"{wire.title}: each arrives alone", singly, "loop-limit", 1.5),
    ]
    ours = f"corral {packed}"
    for peer in wire.peers:
        theirs = f"{peer} {packed}"
        if theirs in costs:
            ratio = costs.ratio(theirs, ours)
            rows.append(
                Row(
                    f"{wire.title}: CPU per event, {peer} ÷ corral",
                    _us(costs.of(ours)),
                    f"{peer} {_us(costs.of(theirs))}",
                    ratio,
                    at_least(50 if peer == LITELLM else 10, ratio),
                )
            )
    return rows


def _row(costs: Costs, what: str, calls: str, limit: str, bar: float | None) -> Row:
    ours, bare = f"corral {calls}", f"{limit} {calls}"
    ratio = costs.ratio(ours, bare)
    title = "asyncio protocol" if limit == "loop-limit" else "socket"
    return Row(
        f"{what}, CPU an event",
        _us(costs.of(ours)),
        f"{title} + msgspec {_us(costs.of(bare))}",
        ratio,
        None if bar is None else at_most(bar, ratio),
    )


def _concurrent(costs: Costs, wire: Wire) -> list[Row]:
    """Small answers per CPU second, 100 concurrent requests."""
    bars = {LITELLM: 20, "limit": 0.6}
    ours = f"corral {wire.name}:concurrent"
    rows: list[Row] = []
    for baseline in (*wire.peers, "limit"):
        theirs = f"{baseline} {wire.name}:concurrent"
        if theirs in costs:
            ratio = costs.ratio(theirs, ours)
            rows.append(
                Row(
                    f"{wire.title}: 100 concurrent small answers, per CPU s",
                    f"{1 / costs.of(ours):,.0f}",
                    f"{baseline if baseline != 'limit' else 'asyncio + msgspec'} "
                    f"{1 / costs.of(theirs):,.0f}",
                    ratio,
                    at_least(bars.get(baseline, 8), ratio),
                )
            )
    return rows


def _imports(bench: BenchEnvironment) -> list[Row]:
    """CPU time of imports, beyond that of an interpreter that imports nothing."""

    def candidate(statement: str, python: str, rounds: int = IMPORT_ROUNDS) -> Candidate:
        argv = [python, "-c", statement]

        def measure() -> float:
            return program_cpu(argv, bench.env, bench.project)

        return Candidate(measure, bench.rounds(rounds), is_warmed=rounds > PEER_ROUNDS)

    own = str(bench.python)
    first = (
        "from corral.models import Client, generate, stream\n"
        "import corral._system.http.client, corral._models.gemini.spec, corral._inference.api"
    )
    names = {
        "bare": candidate("pass", own),
        "corral": candidate("import corral", own),
        "models": candidate("import corral.models", own),
        "client": candidate("import corral._system.http.client", own),
        "first": candidate(first, own),
    }
    modules = {GENAI: "google.genai", ANTHROPIC: "anthropic", OPENAI: "openai", LITELLM: "litellm"}
    for peer, module in modules.items():
        if folder := bench.peer(peer):
            names[peer] = candidate(f"import {module}", str(folder / "python"), PEER_ROUNDS)
    clients = ("aiohttp", "httpcore")
    if folder := bench.peer(HTTP_CLIENTS):
        names |= {each: candidate(f"import {each}", str(folder / "python")) for each in clients}
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
    rows += [row("import the HTTP client", "client", each) for each in clients if each in costs]
    baselines = ("aiohttp", *modules)
    return rows + [
        row("models, HTTP and one wire format", "first", each)
        for each in baselines
        if each in costs
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"
