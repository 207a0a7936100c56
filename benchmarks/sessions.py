"""Stored and named sessions: a prompt to a warm agent, a search, and the cost of the record."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import environment
from benchmarks.environment import ACPX, PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Bar,
    Candidate,
    Row,
    at_most,
    measure_rounds,
    ms,
    program_wall,
    progress,
    run_json,
)

ROUNDS = 9
RECORD_ROUNDS = 4
STORED = 10_000
"""Sessions that are searched."""
NEEDLE = "a needle in session 4321"
GREP_SECONDS = LIST_SECONDS = 0.3
RECORDED_LINES = 200_000


def warm(bench: BenchEnvironment) -> list[Row]:
    """Wall time of a further prompt to a named session whose agent runs already: the complete
    program. Both drive the same agent, which costs nothing."""
    agent = str(PROGRAMS / "acp_agent.sh")
    corral = [str(bench.corral), "run", "--session", "bench", "--quiet"]
    folder = bench.peer(ACPX)
    acpx = [str(folder / "acpx") if folder else "", "--format", "quiet", "--agent", agent]
    prompt = [*acpx, "prompt", "-s", "bench", "go"]
    shutil.rmtree(Path(bench.env["CORRAL_HOME"]) / "warm", ignore_errors=True)
    _call(bench, [*corral, "--agent", agent, "go"])
    try:
        names = {"corral": _wall(bench, [*corral, "go"])}
        if folder:
            _call(bench, [*acpx, "sessions", "new", "--name", "bench"])
            _call(bench, prompt)
            names[ACPX] = _wall(bench, prompt)
        costs = measure_rounds(names)
    finally:
        _call(bench, [str(bench.corral), "sessions", "stop", "--forget", "bench"])
        if folder:
            _call(bench, [*acpx, "sessions", "close", "bench"])
    if not folder:
        return [Row("a further prompt to a named session, wall", ms(costs.of("corral")), "")]
    ratio = costs.ratio("corral", ACPX)
    return [
        Row(
            "a further prompt to a named session, wall",
            ms(costs.of("corral")),
            f"{ACPX} {ms(costs.of(ACPX))}",
            ratio,
            at_most(0.35, ratio),
        )
    ]


def search(bench: BenchEnvironment) -> list[Row]:
    """Wall time of a search in the transcripts, the complete program, with an index that is up to
    date; against ``grep`` over the same files."""
    home = stored_sessions(STORED)
    env = {**bench.env, "CORRAL_HOME": str(home)}
    argv = [str(bench.corral), "runs", "list", "--text", NEEDLE]
    bare = ["grep", "-rlF", NEEDLE, str(home / "sessions"), "--include=events.ndjson"]
    costs = measure_rounds({"corral": _wall(bench, argv, env), "grep": _wall(bench, bare, env)})
    seconds = costs.of("corral")
    return [
        Row(
            f"runs list --text over {STORED:,} sessions, wall",
            ms(seconds),
            f"grep -r {ms(costs.of('grep'))}",
            costs.ratio("corral", "grep"),
            Bar(f"≤ {GREP_SECONDS * 1000:.0f} ms", seconds <= GREP_SECONDS),
        )
    ]


def listed(bench: BenchEnvironment) -> list[Row]:
    """Wall time of the list of the newest sessions, and of what all of them used: the complete
    programs."""
    env = {**bench.env, "CORRAL_HOME": str(stored_sessions(STORED))}
    programs = {"runs list": ["runs", "list"], "usage": ["runs", "usage"]}
    costs = measure_rounds(
        {name: _wall(bench, [str(bench.corral), *words], env) for name, words in programs.items()}
    )
    rows: list[Row] = []
    for name in programs:
        seconds = costs.of(name)
        bar = Bar(f"≤ {LIST_SECONDS * 1000:.0f} ms", seconds <= LIST_SECONDS)
        rows.append(Row(f"{name} of {STORED:,} sessions, wall", ms(seconds), "", None, bar))
    return rows


def record(bench: BenchEnvironment) -> list[Row]:
    """CPU time of the reading process with and without the record of a run."""
    file = bench.stream(RECORDED_LINES)

    def candidate(way: str) -> Candidate:
        argv = [str(bench.python), str(PROGRAMS / "stream.py"), way, str(file)]

        def measure() -> float:
            return float(run_json(argv, bench.env, bench.project)["cpu"])

        return Candidate(measure, bench.rounds(RECORD_ROUNDS), is_warmed=False)

    costs = measure_rounds({"recorded": candidate("recorded"), "corral": candidate("corral")})
    shutil.rmtree(Path(bench.env["CORRAL_HOME"]) / "sessions", ignore_errors=True)
    return [
        Row(
            f"{RECORDED_LINES:,} events, recorded, CPU",
            ms(costs.of("recorded")),
            f"not recorded {ms(costs.of('corral'))}",
            costs.ratio("recorded", "corral"),
        )
    ]


def _wall(
    bench: BenchEnvironment, argv: Sequence[str], env: Mapping[str, str] | None = None
) -> Candidate:
    return Candidate(
        lambda: program_wall(argv, env or bench.env, bench.project), bench.rounds(ROUNDS) + 1
    )


def _call(bench: BenchEnvironment, argv: Sequence[str]) -> None:
    done = subprocess.run(
        argv, env=bench.env, cwd=bench.project, stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"exit {done.returncode}: {list(argv)}\n{text}")


def stored_sessions(count: int) -> Path:
    """A home of corral with this many sessions; made once."""
    import msgspec

    from corral._sessions.store import EVENTS, META, Meta
    from corral.events import Done, Event, Init, Text, Vendor

    home = environment.CACHE / f"sessions-{count}"
    if home.exists():
        return home
    progress(f"{count:,} sessions are made\n")
    draft = home.with_name(f"{home.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    encoder = msgspec.json.Encoder()
    words = ("parser", "index", "deadline", "prompt", "branch", "schema", "token", "worker")
    for number in range(count):
        name = f"20261101-{number:06}-{number:06x}"
        folder = draft / "sessions" / name
        folder.mkdir(parents=True)
        text = " ".join(f"{words[(number + each) % 8]} {number * each}" for each in range(80))
        events: list[Event] = [
            Init(model="none"),
            Vendor("prompt", f"Explain the {words[number % 8]} of part {number}"),
            Text(delta=f"{text}. This is a needle in session {number}."),
            Done(status="success", duration_ms=1000),
        ]
        meta = Meta(name, "gemini-cli", "/work", float(number), float(number))
        meta.title, meta.status, meta.turns = f"Explain part {number}", "success", 1
        (folder / EVENTS).write_bytes(encoder.encode_lines(events))
        (folder / META).write_bytes(encoder.encode(meta))
    draft.rename(home)
    return home
