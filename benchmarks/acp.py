"""The cost of the Agent Client Protocol, and what a persistent agent saves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.environment import ACP_SDK, MANAGED, PROGRAMS, BenchEnvironment
from benchmarks.measure import Row, at_least, at_most, ms, progress, run_json

ROUNDS = 4
UPDATES = 100_000
PEER_UPDATES = 50_000
"""Each costs the peer ten times as much."""
PROMPT_ROUNDS = 2
PROCESSES = 3
PROMPTS = 60
"""Enough prompts for more than one process of the pool."""
QUICK_PROMPTS = 30
MEMORY_PROMPTS = 1_000
SERVED = 5_000
"""Pieces of the answer that goes through ``corral acp``."""

Figures: TypeAlias = Mapping[str, Any]
"""What a benchmark program printed."""
Measure: TypeAlias = Callable[[], dict[str, Any]]
Round: TypeAlias = dict[str, dict[str, Any]]


def acp(bench: BenchEnvironment) -> list[Row]:
    return [*updates(bench), *prompts(bench), *served(bench), *memory(bench)]


def updates(bench: BenchEnvironment) -> list[Row]:
    """Updates per CPU second of the reading process."""
    file = bench.updates(UPDATES)
    candidates: dict[str, Measure] = {
        "corral": lambda: _read_updates(bench, "corral", file),
        "wire": lambda: _read_updates(bench, "wire", file),
    }
    if folder := bench.peer(ACP_SDK):
        few = str(bench.updates(PEER_UPDATES))
        argv = [str(folder / "python"), str(PROGRAMS / "acp_sdk.py"), few]
        candidates[ACP_SDK] = lambda: run_json(argv, bench.env, bench.project)
    rounds = _rounds(candidates, bench.rounds(ROUNDS))
    rows: list[Row] = []
    for baseline, title, bar in (
        (ACP_SDK, "the official SDK", 10),
        ("wire", "our parser alone, in memory", None),
    ):
        if baseline in candidates:
            ratio = _ratio(rounds, _rate, "corral", baseline)
            rows.append(
                Row(
                    f"ACP: {UPDATES:,} updates of 225 bytes, k per CPU s",
                    f"{_median(rounds, _rate, 'corral') / 1000:,.0f} k",
                    f"{title} {_median(rounds, _rate, baseline) / 1000:,.0f} k",
                    ratio,
                    None if bar is None else at_least(bar, ratio),
                )
            )
    return rows


def prompts(bench: BenchEnvironment) -> list[Row]:
    """Prompts to the real Gemini CLI per CPU second of the process tree, including corral: one
    process each, a pool with a session each, and one session for all."""
    from corral.testing import ModelServer, Turn

    found = sorted((MANAGED / "agents" / "gemini").glob("*/node_modules/.bin/gemini"))
    if not found or not shutil.which("node"):
        progress("the Gemini CLI is not installed: left out (make agents)\n")
        return []
    count = QUICK_PROMPTS if bench.quick else PROMPTS
    with ModelServer(lambda _: Turn(text="Nothing to do.")) as model:
        env = {**bench.env, "GOOGLE_GEMINI_BASE_URL": model.url}

        def measure(way: str, many: int) -> Measure:
            script = str(PROGRAMS / "acp_prompts.py")
            argv = [str(bench.python), script, way, str(many), str(found[-1])]
            return lambda: run_json(argv, env, bench.project)

        candidates = {
            "process": measure("process", bench.rounds(PROCESSES)),
            "pool": measure("pool", count),
            "session": measure("session", count),
        }
        rounds = _rounds(candidates, bench.rounds(PROMPT_ROUNDS))
        if model.failures:
            raise RuntimeError(f"the scripted model was asked for more: {model.failures}")

    def row(way: str, what: str, name: str, bar: float | None) -> Row:
        def rate(figures: Figures) -> float:
            return float(1 / figures[name])

        def total_rate(figures: Figures) -> float:
            return float(1 / figures["cpu"])

        ratio = median(rate(each[way]) / total_rate(each["process"]) for each in rounds)
        return Row(
            f"Gemini CLI, {what}: prompts per CPU s",
            f"{_median(rounds, rate, way):.3g}",
            f"one process each {_median(rounds, total_rate, 'process'):.3g}",
            ratio,
            None if bar is None else at_least(bar, ratio),
        )

    def first(way: str, what: str) -> Row:
        return Row(
            f"Gemini CLI, {what}",
            ms(_median(rounds, _first, way)),
            f"one process each, first text {ms(_median(rounds, _first, 'process'))}",
            _ratio(rounds, _first, way, "process"),
        )

    return [
        row("pool", f"pool, {count} sessions", "cpu", 10),
        row("session", "one session, after its start", "warm", 60),
        row("session", f"one session, {count} prompts with its start", "cpu", None),
        first("pool", "pool, two concurrent: time to the first text"),
        first("session", "one session: time to the first text"),
    ]


def served(bench: BenchEnvironment) -> list[Row]:
    """CPU of the real Gemini CLI for one long answer, alone and behind ``corral acp``: with all
    processes, and their start."""
    from corral.testing import ModelServer, Turn

    found = sorted((MANAGED / "agents" / "gemini").glob("*/node_modules/.bin/gemini"))
    if not found or not shutil.which("node"):
        return []
    program = str(found[-1])
    pieces = [f"some words of an answer to the prompt {number}, " for number in range(SERVED)]
    with ModelServer(lambda _: Turn(text=pieces)) as model:
        env = {**bench.env, **model.env}
        script = [str(bench.python), str(PROGRAMS / "acp_served.py"), "go"]
        behind = [str(bench.corral), "acp", "--agent", "gemini-acp", "--program", program]

        def measure(*command: str) -> Measure:
            return lambda: run_json([*script, *command], env, bench.project)

        candidates = {"alone": measure(program, "--acp"), "behind": measure(*behind)}
        rounds = _rounds(candidates, bench.rounds(PROMPT_ROUNDS))

    def used(figures: Figures) -> float:
        return float(figures["cpu"])

    ratio = _ratio(rounds, used, "behind", "alone")
    return [
        Row(
            f"Gemini CLI behind corral acp, {SERVED:,} updates, CPU",
            ms(_median(rounds, used, "behind")),
            f"alone {ms(_median(rounds, used, 'alone'))}",
            ratio,
            at_most(1.1, ratio),
        )
    ]


def memory(bench: BenchEnvironment) -> list[Row]:
    """Resident memory of the reading process at the end, relative to that after the first tenth."""
    few, all_updates = bench.updates(10), bench.updates(UPDATES)
    many = MEMORY_PROMPTS // 4 if bench.quick else MEMORY_PROMPTS
    rows: list[Row] = []
    for what, way, file, count in (
        ("updates", "corral", all_updates, UPDATES),
        ("prompts in a session", "session", few, many),
        ("prompts in a pool", "pool", few, many),
    ):
        sizes: Sequence[int] = _read_updates(bench, way, file, many)["resident"]
        ratio = sizes[-1] / sizes[0]
        rows.append(
            Row(
                f"ACP: memory after {count:,} {what}",
                f"{sizes[-1] / 1e6:.1f} MB",
                f"after {count // 10:,} {sizes[0] / 1e6:.1f} MB",
                ratio,
                at_most(1.1, ratio),
            )
        )
        progress(".")
    progress("\n")
    return rows


def _rounds(candidates: Mapping[str, Measure], count: int) -> list[Round]:
    """Like ``measure_rounds``, for candidates that report more than one figure."""
    rounds: list[Round] = []
    names = list(candidates)
    for number in range(count):
        turn = number % len(names)
        rounds.append({name: candidates[name]() for name in names[turn:] + names[:turn]})
        progress(".")
    progress("\n")
    return rounds


def _median(rounds: Sequence[Round], of: Callable[[Mapping[str, Any]], float], name: str) -> float:
    return median(of(each[name]) for each in rounds)


def _ratio(
    rounds: Sequence[Round], of: Callable[[Mapping[str, Any]], float], name: str, baseline: str
) -> float:
    return median(of(each[name]) / of(each[baseline]) for each in rounds)


def _rate(figures: Figures) -> float:
    return float(figures["count"] / figures["cpu"])


def _first(figures: Figures) -> float:
    return float(figures["first"])


def _read_updates(
    bench: BenchEnvironment, way: str, file: Path, prompts: int = 1
) -> dict[str, Any]:
    script = str(PROGRAMS / "acp_updates.py")
    argv = [str(bench.python), script, way, str(file), str(prompts)]
    return run_json(argv, bench.env, bench.project)
