"""Startup cost: imports, and ``--help``."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

from benchmarks.environment import ACPX, CLAUDE_SDK, LITELLM, PROGRAMS, BenchEnvironment
from benchmarks.measure import Candidate, Costs, Row, at_most, measure_rounds, ms, program_cpu

ROUNDS = 11
PEER_ROUNDS = 2
"""Of a peer, whose import takes seconds."""


class Baseline(NamedTuple):
    name: str
    title: str
    bar: float | None = None


def imports(bench: BenchEnvironment) -> list[Row]:
    """CPU time of an import, beyond that of an interpreter that imports nothing."""

    def candidate(statement: str, python: str, rounds: int = ROUNDS) -> Candidate:
        return _candidate(bench, [python, "-c", statement], rounds)

    python = str(bench.python)
    names = {
        "bare": candidate("pass", python),
        "limit": candidate("import asyncio, msgspec", python),
        "corral": candidate("import corral", python),
        "used": candidate("from corral import run, session, Policy", python),
    }
    for peer, module in ((CLAUDE_SDK, "claude_agent_sdk"), (LITELLM, "litellm")):
        if folder := bench.peer(peer):
            names[peer] = candidate(f"import {module}", str(folder / "python"), PEER_ROUNDS)
    costs = measure_rounds(names)
    rows: list[Row] = []
    for name, what in (
        ("corral", "import corral"),
        ("used", "from corral import run, session, Policy"),
    ):
        rows += [
            _row(costs, what, name, baseline, over="bare")
            for baseline in (
                Baseline("limit", "asyncio + msgspec", 1.5),
                Baseline(CLAUDE_SDK, CLAUDE_SDK),
                Baseline(LITELLM, LITELLM),
            )
            if baseline.name in costs
        ]
    return rows


def helps(bench: BenchEnvironment) -> list[Row]:
    """CPU time of ``--help``, the complete program."""

    click = [str(bench.python), str(PROGRAMS / "bare_click.py"), "--help"]
    names = {
        "click": _candidate(bench, click, ROUNDS),
        "corral": _candidate(bench, [str(bench.corral), "--help"], ROUNDS),
    }
    for peer in (ACPX, LITELLM):
        if folder := bench.peer(peer):
            names[peer] = _candidate(bench, [str(folder / peer), "--help"], PEER_ROUNDS)
    costs = measure_rounds(names)
    baselines = (
        Baseline("click", "bare click", 2.0),
        Baseline(ACPX, ACPX),
        Baseline(LITELLM, LITELLM),
    )
    return [
        _row(costs, "corral --help", "corral", baseline)
        for baseline in baselines
        if baseline.name in costs
    ]


def mcp_servers(bench: BenchEnvironment) -> list[Row]:
    """CPU time of an MCP server that is started, lists its tools and ends with its input."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
    messages = (
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    )
    given = bench.project / "mcp.ndjson"
    lines = (json.dumps({"jsonrpc": "2.0", **message}) for message in messages)
    given.write_text("".join(f"{line}\n" for line in lines))

    def candidate(*argv: str) -> Candidate:
        def measure() -> float:
            return program_cpu(argv, bench.env, bench.project, given)

        return Candidate(measure, bench.rounds(ROUNDS))

    # The SDK is among the packages of the benchmarks themselves.
    names = {
        "sdk": candidate(sys.executable, str(PROGRAMS / "bare_mcp.py")),
        "corral": candidate(str(bench.corral), "mcp"),
    }
    costs = measure_rounds(names)
    return [_row(costs, "corral mcp, start", "corral", Baseline("sdk", "bare mcp server", 1.5))]


_CLIENT = {"name": "benchmark", "version": "1"}


def _candidate(bench: BenchEnvironment, argv: list[str], rounds: int) -> Candidate:
    def measure() -> float:
        return program_cpu(argv, bench.env, bench.project)

    return Candidate(measure, bench.rounds(rounds), is_warmed=rounds > PEER_ROUNDS)


def _row(costs: Costs, what: str, name: str, baseline: Baseline, *, over: str | None = None) -> Row:
    ratio = costs.ratio(name, baseline.name, over)
    return Row(
        f"{what}, CPU",
        ms(costs.of(name, over)),
        f"{baseline.title} {ms(costs.of(baseline.name, over))}",
        ratio,
        None if baseline.bar is None else at_most(baseline.bar, ratio),
    )
