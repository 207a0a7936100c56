"""The cost of the Agent Client Protocol, and what a persistent agent saves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.measure import Row, at_least, at_most, ms, program_says, tell
from benchmarks.world import ACP_SDK, MANAGED, PROGRAMS, World

ROUNDS = 5
UPDATES = 100_000
PROMPT_ROUNDS = 3
PROCESSES = 4
PROMPTS = 60
"""Enough prompts for more than one process of the pool."""
QUICK_PROMPTS = 30
MEMORY_PROMPTS = 1_000

Says: TypeAlias = Callable[[], dict[str, Any]]
Round: TypeAlias = dict[str, dict[str, Any]]


def acp(world: World) -> list[Row]:
    return [*updates(world), *prompts(world), *memory(world)]


def updates(world: World) -> list[Row]:
    """Updates per CPU second of the reading process."""
    file = world.updates(UPDATES)
    contenders: dict[str, Says] = {
        "corral": lambda: _flood(world, "corral", file),
        "wire": lambda: _flood(world, "wire", file),
    }
    if folder := world.peer(ACP_SDK):
        argv = [str(folder / "python"), str(PROGRAMS / "acp_sdk.py"), str(file)]
        contenders[ACP_SDK] = lambda: program_says(argv, world.env, world.project)
    rounds = _rounds(contenders, world.rounds(ROUNDS))
    rows: list[Row] = []
    for rival, said, bar in (
        (ACP_SDK, "the official SDK", 10),
        ("wire", "our parser alone, in memory", None),
    ):
        if rival in contenders:
            ratio = _ratio(rounds, _rate, "corral", rival)
            rows.append(
                Row(
                    f"ACP: {UPDATES:,} updates of 225 bytes, k per CPU s",
                    f"{_middle(rounds, _rate, 'corral') / 1000:,.0f} k",
                    f"{said} {_middle(rounds, _rate, rival) / 1000:,.0f} k",
                    ratio,
                    None if bar is None else at_least(bar, ratio),
                )
            )
    return rows


def prompts(world: World) -> list[Row]:
    """Prompts to the real Gemini CLI per CPU second of the process tree, including corral: one
    process each, a pool with a session each, and one session for all."""
    from corral.testing import ModelServer, Turn

    found = sorted((MANAGED / "agents" / "gemini").glob("*/node_modules/.bin/gemini"))
    if not found or not shutil.which("node"):
        tell("the Gemini CLI is not installed: left out (make agents)\n")
        return []
    count = QUICK_PROMPTS if world.quick else PROMPTS
    with ModelServer(lambda _: Turn(text="Nothing to do.")) as model:
        env = {**world.env, "GOOGLE_GEMINI_BASE_URL": model.url}

        def says(way: str, many: int) -> Says:
            script = str(PROGRAMS / "acp_prompts.py")
            argv = [str(world.python), script, way, str(many), str(found[-1])]
            return lambda: program_says(argv, env, world.project)

        contenders = {
            "process": says("process", world.rounds(PROCESSES)),
            "pool": says("pool", count),
            "session": says("session", count),
        }
        rounds = _rounds(contenders, world.rounds(PROMPT_ROUNDS))
        if model.failures:
            raise RuntimeError(f"the scripted model was asked for more: {model.failures}")

    def row(way: str, what: str, name: str, bar: float | None) -> Row:
        def rate(said: Mapping[str, Any]) -> float:
            return float(1 / said[name])

        def whole(said: Mapping[str, Any]) -> float:
            return float(1 / said["cpu"])

        ratio = median(rate(each[way]) / whole(each["process"]) for each in rounds)
        return Row(
            f"Gemini CLI, {what}: prompts per CPU s",
            f"{_middle(rounds, rate, way):.3g}",
            f"one process each {_middle(rounds, whole, 'process'):.3g}",
            ratio,
            None if bar is None else at_least(bar, ratio),
        )

    def first(way: str, what: str) -> Row:
        return Row(
            f"Gemini CLI, {what}",
            ms(_middle(rounds, _first, way)),
            f"one process each, first text {ms(_middle(rounds, _first, 'process'))}",
            _ratio(rounds, _first, way, "process"),
        )

    return [
        row("pool", f"pool, {count} sessions", "cpu", 10),
        row("session", "one session, after its start", "warm", 60),
        row("session", f"one session, {count} prompts with its start", "cpu", None),
        first("pool", "pool, two concurrent: time to the first text"),
        first("session", "one session: time to the first text"),
    ]


def memory(world: World) -> list[Row]:
    """Resident memory of the reading process at the end, relative to that after the first tenth."""
    few, whole = world.updates(10), world.updates(UPDATES)
    many = MEMORY_PROMPTS // 4 if world.quick else MEMORY_PROMPTS
    rows: list[Row] = []
    for what, way, file, count in (
        ("updates", "corral", whole, UPDATES),
        ("prompts in a session", "session", few, many),
        ("prompts in a pool", "pool", few, many),
    ):
        sizes: Sequence[int] = _flood(world, way, file, many)["resident"]
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
        tell(".")
    tell("\n")
    return rows


def _rounds(contenders: Mapping[str, Says], count: int) -> list[Round]:
    """Like ``compete``, for contenders that report more than one figure."""
    rounds: list[Round] = []
    names = list(contenders)
    for number in range(count + 1):
        turn = number % len(names)
        rounds.append({name: contenders[name]() for name in names[turn:] + names[:turn]})
        tell(".")
    tell("\n")
    return rounds[1:]


def _middle(rounds: Sequence[Round], of: Callable[[Mapping[str, Any]], float], name: str) -> float:
    return median(of(each[name]) for each in rounds)


def _ratio(
    rounds: Sequence[Round], of: Callable[[Mapping[str, Any]], float], name: str, rival: str
) -> float:
    return median(of(each[name]) / of(each[rival]) for each in rounds)


def _rate(said: Mapping[str, Any]) -> float:
    return float(said["count"] / said["cpu"])


def _first(said: Mapping[str, Any]) -> float:
    return float(said["first"])


def _flood(world: World, way: str, file: Path, prompts: int = 1) -> dict[str, Any]:
    script = str(PROGRAMS / "acp_updates.py")
    argv = [str(world.python), script, way, str(file), str(prompts)]
    return program_says(argv, world.env, world.project)
