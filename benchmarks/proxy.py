"""What the model proxy adds to an agent's model calls: CPU time, and time to the first byte."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import quantiles
from typing import NamedTuple

from benchmarks.environment import LITELLM_PROXY, MANAGED, PROGRAMS, BenchEnvironment
from benchmarks.measure import (
    Bar,
    Candidate,
    Row,
    at_least,
    at_most,
    measure_rounds,
    ms,
    program_cpu,
    progress,
    run_json,
)
from benchmarks.models import model_server

PROMPT_ROUNDS = 7
PEER_ROUNDS = 2
MOST_CPU = 1.05
CALLS = 120
"""Calls of which the first byte is measured, over each way."""
EVENTS = 200
MOST_SECONDS = 0.001
LITELLM_RATIO = 20


class RunningProxy(NamedTuple):
    url: str
    key: str
    process: subprocess.Popen[str]

    def cpu(self) -> float:
        """CPU seconds of its process so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def proxy(bench: BenchEnvironment) -> list[Row]:
    with ExitStack() as stack:
        direct = f"http://127.0.0.1:{stack.enter_context(model_server(bench))}"
        proxies: dict[str, RunningProxy] = {}
        for way in ("limit", "corral", "litellm"):
            made = stack.enter_context(_running(bench, way, direct))
            if made is not None:
                proxies[way] = made
        return [*_calls(bench, direct, proxies), *_prompts(bench, direct, proxies.get("litellm"))]


@contextmanager
def _running(bench: BenchEnvironment, way: str, upstream: str) -> Generator[RunningProxy | None]:
    """None for a peer that is not available."""
    folder = bench.peer(LITELLM_PROXY) if way == "litellm" else bench.python.parent
    if folder is None:
        yield None
        return
    argv = [str(folder / "python"), str(PROGRAMS / "model_proxies.py"), way, upstream]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=bench.env
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            while line and not line.startswith("{"):  # litellm greets
                line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the proxy {way} did not start")
            given = json.loads(line)
            yield RunningProxy(given["url"], given["key"], process)
        finally:
            process.kill()


def _calls(bench: BenchEnvironment, direct: str, proxies: Mapping[str, RunningProxy]) -> list[Row]:
    """The same calls directly and over each proxy, which take turns call by call."""
    routes = [f"direct={direct}=none-is-needed"]
    routes += [f"{way}={each.url}={each.key}" for way, each in proxies.items()]
    count = bench.rounds(CALLS)
    before = {way: each.cpu() for way, each in proxies.items()}
    argv = [str(bench.python), str(PROGRAMS / "first_bytes.py"), str(count), str(EVENTS)]
    found = run_json([*argv, *routes], bench.env, bench.project)["seconds"]
    cpu = {way: (each.cpu() - before[way]) / count for way, each in proxies.items()}
    return [*_first_bytes(found), *_cpu_of_calls(cpu)]


def _first_bytes(found: Mapping[str, list[float]]) -> list[Row]:
    # Of the fastest quarter the slowest: in the others the process waited for the machine.
    seconds = {way: quantiles(each, n=4)[0] for way, each in found.items()}

    def added(way: str) -> float:
        return seconds[way] - seconds["direct"]

    ours = added("corral")
    what = "first byte of a model's response, added by the proxy"
    rows = [
        Row(
            what,
            ms(ours),
            f"bytes passed on {ms(added('limit'))}",
            ours / added("limit"),
            Bar(f"≤ {ms(MOST_SECONDS)}", ours <= MOST_SECONDS),
        )
    ]
    if "litellm" in found:
        ratio = added("litellm") / ours
        rows.append(
            Row(
                f"{what}, litellm ÷ corral",
                ms(ours),
                f"litellm's proxy {ms(added('litellm'))}",
                ratio,
                at_least(LITELLM_RATIO, ratio),
            )
        )
    return rows


def _cpu_of_calls(cpu: Mapping[str, float]) -> list[Row]:
    what = f"CPU of the proxy for a call with {EVENTS} events"
    ours = cpu["corral"]
    rows = [Row(what, ms(ours), f"bytes passed on {ms(cpu['limit'])}", ours / cpu["limit"])]
    if "litellm" in cpu:
        ratio = cpu["litellm"] / ours
        cells = ms(ours), f"litellm's proxy {ms(cpu['litellm'])}"
        rows.append(Row(f"{what}, litellm ÷ corral", *cells, ratio, at_least(LITELLM_RATIO, ratio)))
    return rows


def _prompts(bench: BenchEnvironment, direct: str, litellm: RunningProxy | None) -> list[Row]:
    """CPU time of the process tree of ``corral run`` with the real CLI: metered, not metered, and
    not metered with litellm's proxy between it and the model, whose CPU time is added."""
    found = sorted((MANAGED / "agents" / "gemini").glob("*/node_modules/.bin/gemini"))
    if not found or not shutil.which("node"):
        progress("the Gemini CLI is not installed: left out (make agents)\n")
        return []
    options = ["--program", str(found[-1]), "--model", "gemini-2.5-flash", "--no-keep", "--quiet"]
    run = [str(bench.corral), "run", "--agent", "gemini-cli", *options]
    env = {**bench.env, "GOOGLE_GEMINI_BASE_URL": direct}

    def candidate(flag: str) -> Candidate:
        argv = [*run, flag, "go"]
        rounds = bench.rounds(PROMPT_ROUNDS)
        return Candidate(lambda: program_cpu(argv, env, bench.project), rounds, is_warmed=False)

    candidates = {"metered": candidate("--meter"), "bare": candidate("--no-meter")}
    if litellm is not None:
        candidates["litellm"] = _through(litellm, [*run, "--no-meter", "go"], bench)
    costs = measure_rounds(candidates)
    what, without = "a prompt to the real Gemini CLI", f"without a proxy {ms(costs.of('bare'))}"
    ratio = costs.ratio("metered", "bare")
    rows = [
        Row(
            f"{what}, metered, CPU",
            ms(costs.of("metered")),
            without,
            ratio,
            at_most(MOST_CPU, ratio),
        )
    ]
    if "litellm" in costs:
        ratio = costs.ratio("metered", "litellm")
        title = f"through litellm's proxy {ms(costs.of('litellm'))}"
        rows.append(Row(f"{what}, metered, CPU", ms(costs.of("metered")), title, ratio))
    return rows


def _through(given: RunningProxy, argv: list[str], bench: BenchEnvironment) -> Candidate:
    env = {**bench.env, "GOOGLE_GEMINI_BASE_URL": given.url, "GEMINI_API_KEY": given.key}

    def measure() -> float:
        before = given.cpu()
        return program_cpu(argv, env, bench.project) + given.cpu() - before

    return Candidate(measure, bench.rounds(PEER_ROUNDS), is_warmed=False)
