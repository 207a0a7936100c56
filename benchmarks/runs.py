"""What corral adds to one run: of an agent that costs nothing, and of the real Gemini CLI."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.environment import ACPX, CLAUDE_SDK, MANAGED, PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Bar,
    Candidate,
    Group,
    Row,
    at_most,
    measure_groups,
    measure_rounds,
    ms,
    program_cost,
    program_cpu,
    progress,
)

ROUNDS = 13
PEER_ROUNDS = 2
REAL_ROUNDS = 6


def instant(bench: BenchEnvironment) -> list[Row]:
    """CPU time of the complete program for one run of ten lines, including the agent.

    corral's has everything a run has but a session that stays: configuration, policy
    compiled and checked, private home, two looks at the project's files, ledger, guard.
    """
    env = {**bench.env, "FAKE_OUTPUT": str(bench.stream(10))}
    agent = str(PROGRAMS / "gemini_agent.sh")
    run = [str(bench.corral), "run", "--agent", "gemini-cli"]
    run += ["--program", agent, "--env", "FAKE_OUTPUT"]

    def candidate(argv: list[str], rounds: int = ROUNDS) -> Candidate:
        def measure() -> float:
            return program_cpu(argv, env, bench.project)

        return Candidate(measure, bench.rounds(rounds), is_warmed=rounds > PEER_ROUNDS)

    names = {
        "limit": candidate([str(bench.python), str(PROGRAMS / "bare_run.py"), agent, "go"]),
        "corral": candidate([*run, "--no-keep", "--quiet", "go"]),
        "defaults": candidate([*run, "go"]),
    }
    if folder := bench.peer(CLAUDE_SDK):
        script, program = PROGRAMS / "claude_sdk_run.py", PROGRAMS / "claude_agent.sh"
        argv = [str(folder / "python"), str(script), str(program), "go"]
        names[CLAUDE_SDK] = candidate(argv, PEER_ROUNDS)
    if folder := bench.peer(ACPX):
        argv = [str(folder / "acpx"), "--agent", str(PROGRAMS / "acp_agent.sh"), "exec", "go"]
        names[ACPX] = candidate(argv, PEER_ROUNDS)
    costs = measure_rounds(names)
    shutil.rmtree(Path(bench.env["CORRAL_HOME"]) / "sessions", ignore_errors=True)
    rows: list[Row] = []
    for name, what, baseline, title, bar in (
        ("corral", "corral run --no-keep --quiet", "limit", "bare asyncio + msgspec", 1.6),
        ("corral", "corral run --no-keep --quiet", CLAUDE_SDK, CLAUDE_SDK, None),
        ("corral", "corral run --no-keep --quiet", ACPX, ACPX, None),
        ("defaults", "corral run, session and transcript stored", "limit", "bare", None),
    ):
        if baseline in costs:
            ratio = costs.ratio(name, baseline)
            cells = ms(costs.of(name)), f"{title} {ms(costs.of(baseline))}"
            rows.append(
                Row(f"{what}, CPU", *cells, ratio, None if bar is None else at_most(bar, ratio))
            )
    return rows


def sandbox(bench: BenchEnvironment) -> list[Row]:
    """What the sandbox adds to a run of an agent that costs nothing: by the clock, and CPU time."""
    from corral._system.sandbox import bubblewrap

    program = bubblewrap.find()
    if program is None:
        progress("bubblewrap is not installed: left out\n")
        return []
    output = bench.stream(10)
    # It may be that of a package which the measured environment does not have.
    path = f"{Path(program).parent}:{bench.env['PATH']}"
    env = {**bench.env, "PATH": path, "FAKE_OUTPUT": str(output)}
    run = [str(bench.corral), "run", "--agent", "gemini-cli", "--no-keep", "--quiet"]
    run += ["--program", str(PROGRAMS / "gemini_agent.sh"), "--env", "FAKE_OUTPUT"]
    run += ["--approve", "edits", "--add-dir", str(output.parent)]

    def both(mode: str) -> Group:
        argv = [*run, "--sandbox", mode, "go"]

        def measure() -> dict[str, float]:
            cost = program_cost(argv, env, bench.project)
            return {f"{mode} by the clock": cost.wall, f"{mode} CPU": cost.cpu}

        return Group(measure, bench.rounds(ROUNDS))

    costs = measure_groups([both("off"), both("require")])
    rows: list[Row] = []
    for what, most in (("by the clock", 0.060), ("CPU", 0.025)):
        inside, outside = f"require {what}", f"off {what}"
        added = costs.of(inside) - costs.of(outside)
        rows.append(
            Row(
                f"corral run in the sandbox, {what}",
                ms(costs.of(inside)),
                f"without {ms(costs.of(outside))}: {ms(added)} more",
                costs.ratio(inside, outside),
                Bar(f"at most {ms(most)} more", added <= most),
            )
        )
    return rows


def verify(bench: BenchEnvironment) -> list[Row]:
    """What ``--verify`` adds to a run of an agent that costs nothing. The check is the program
    ``true``."""
    env = {**bench.env, "FAKE_OUTPUT": str(bench.stream(10))}
    run = [str(bench.corral), "run", "--agent", "gemini-cli", "--no-keep", "--quiet"]
    run += ["--program", str(PROGRAMS / "gemini_agent.sh"), "--env", "FAKE_OUTPUT"]

    def candidate(name: str, *words: str) -> Group:
        argv = [*run, *words, "go"]

        def measure() -> dict[str, float]:
            cost = program_cost(argv, env, bench.repository)
            return {f"{name} by the clock": cost.wall, f"{name} CPU": cost.cpu}

        return Group(measure, bench.rounds(ROUNDS))

    costs = measure_groups([candidate("without"), candidate("with", "--verify", "true")])
    rows: list[Row] = []
    for what, most in (("by the clock", 0.150), ("CPU", 0.150)):
        verified, plain = f"with {what}", f"without {what}"
        added = costs.of(verified) - costs.of(plain)
        rows.append(
            Row(
                f"corral run --verify true, {what}",
                ms(costs.of(verified)),
                f"without {ms(costs.of(plain))}: {ms(added)} more",
                costs.ratio(verified, plain),
                Bar(f"at most {ms(most)} more", added <= most),
            )
        )
    return rows


def real(bench: BenchEnvironment) -> list[Row]:
    """CPU time of the process tree: the real CLI alone, and through ``corral run``, with the
    same arguments, settings, policy and environment, against the same scripted model."""
    from corral.testing import ModelServer, Turn

    program = MANAGED / "agents" / "gemini"
    found = sorted(program.glob("*/node_modules/.bin/gemini"))
    if not found or not shutil.which("node"):
        progress("the Gemini CLI is not installed: left out (make agents)\n")
        return []
    with ModelServer(lambda _: Turn(text="Nothing to do.")) as model, tempfile.TemporaryDirectory(
        prefix="corral-bench-"
    ) as folder:  # fmt: skip
        env = {**bench.env, "GOOGLE_GEMINI_BASE_URL": model.url}
        options = ["--program", str(found[-1]), "--model", "gemini-2.5-flash"]
        run = [
            str(bench.corral),
            "run",
            "--agent",
            "gemini-cli",
            *options,
            "--no-keep",
            "--quiet",
            "go",
        ]
        bare = _bare(Path(folder), str(found[-1]), bench, env)
        count = bench.rounds(REAL_ROUNDS)
        costs = measure_rounds(
            {
                "bare": Candidate(bare, count, is_warmed=False),
                "corral": Candidate(
                    lambda: program_cpu(run, env, bench.project), count, is_warmed=False
                ),
            }
        )
        if model.failures:
            raise RuntimeError(f"the scripted model was asked for more: {model.failures}")
    return [
        Row(
            "corral run of the real Gemini CLI, CPU of the tree",
            ms(costs.of("corral")),
            f"the CLI alone {ms(costs.of('bare'))}",
            costs.ratio("corral", "bare"),
        )
    ]


def _bare(
    folder: Path, program: str, bench: BenchEnvironment, env: dict[str, str]
) -> Callable[[], float]:
    """The CLI, started with the same arguments without corral."""
    from corral._sessions.prepare import prepare

    options: dict[str, object] = {
        "cwd": str(bench.project),
        "program": program,
        "model": "gemini-2.5-flash",
        "env": {name: env[name] for name in ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY")},
    }
    prepared = prepare("gemini-cli", options)
    launch = prepared.agent.launch(
        prepared.run, prepared.launch_context(folder, prepared.links()), "go", None
    )
    full_env = {**env, **launch.env}
    prompt = folder / "prompt"
    prompt.write_bytes(launch.stdin)

    def measure() -> float:
        shutil.rmtree(folder / "home", ignore_errors=True)
        (folder / "tmp").mkdir(exist_ok=True)
        for name, content in launch.files.items():
            file = folder / "home" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return program_cpu(launch.argv, full_env, bench.project, stdin=prompt)

    return measure
