"""Many processes: concurrent agents, and ending process trees."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.environment import PROGRAMS, BenchEnvironment
from benchmarks.measure import Bar, Row, at_most, ms, progress, run_json

AGENTS = 200
AGENT_ROUNDS = 2
THREADS = 8
"""asyncio's own thread pool for file access, and the main thread."""
AT_ONCE = (200, 2000)
AGENT_BYTES = 40_000
"""Memory of our process for each running agent."""
GROWTH = 1.1
"""What an agent may cost among the most agents, over what it costs among the fewest."""
KINDS = ("plain", "setsid", "double-fork", "ignores-TERM")
TREES = 60
PEER_TREES = 15


def concurrent(bench: BenchEnvironment) -> list[Row]:
    """200 agents in one process, each of which sleeps for a second between its first line
    and the others."""
    python, file = str(bench.python), str(bench.stream(10))

    def measure(way: str) -> dict[str, Any]:
        argv = [
            python,
            str(PROGRAMS / "concurrent_agents.py"),
            way,
            str(AGENTS),
            file,
            str(bench.project),
        ]
        return run_json(argv, bench.env, bench.project)

    rounds: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for _ in range(bench.rounds(AGENT_ROUNDS)):
        rounds.append((measure("corral"), measure("asyncio")))
        progress(".")
    progress("\n")

    def row(what: str, name: str, show: Callable[[float], str], bar: Bar | None = None) -> Row:
        ours, theirs = (median(pair[at][name] for pair in rounds) for at in (0, 1))
        ratio = median(a[name] / b[name] for a, b in rounds)
        title = f"{AGENTS} concurrent agents: {what}"
        return Row(title, show(ours), f"bare asyncio {show(theirs)}", ratio, bar)

    most = max(pair[0]["threads"] for pair in rounds)
    return [
        *_at_once(bench),
        row("wall", "wall", lambda value: f"{value:.1f} s"),
        row("parent's CPU a run", "cpu", ms),
        row(
            "threads", "threads", lambda value: f"{value:.0f}", Bar(f"≤ {THREADS}", most <= THREADS)
        ),
        row("peak memory", "peak", lambda value: f"{value / 1e6:.0f} MB"),
    ]


def _at_once(bench: BenchEnvironment) -> list[Row]:
    """Agents of which all run at the same moment. Each is a real process, a shell that waits: on a
    machine with less than 4 GB or a low limit on processes, use the quick form, which starts a
    tenth of them."""
    sizes = tuple(size // 10 if bench.quick else size for size in AT_ONCE)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for size in sizes:
        for way in ("corral", "asyncio"):
            argv = [str(bench.python), str(PROGRAMS / "many_agents.py"), way, str(size)]
            argv += [str(bench.stream(10)), str(bench.project)]
            found[way, size] = run_json(argv, bench.env, bench.project)
            progress(".")
    rows = [row for size in sizes for row in _one_size(size, found)]
    few, many = (found["corral", size] for size in sizes)
    title = f"{sizes[1]:,} agents at the same moment"
    # The start of a process costs the kernel more in a process with more files open: that
    # part is in both, and is not ours.
    cpu = [found["corral", size]["cpu"] - found["asyncio", size]["cpu"] for size in sizes]
    return [
        *rows,
        Row(
            f"{title}: memory each",
            kilobytes(many["memory"]),
            f"{sizes[0]} agents {kilobytes(few['memory'])}",
            many["memory"] / few["memory"],
            at_most(GROWTH, many["memory"] / few["memory"]),
        ),
        Row(
            f"{title}: parent's CPU each, less that of bare asyncio",
            ms(cpu[1]),
            f"{sizes[0]} agents {ms(cpu[0])}",
            cpu[1] / cpu[0],
            at_most(GROWTH, cpu[1] / cpu[0]),
        ),
    ]


def kilobytes(count: float) -> str:
    return f"{count / 1000:.1f} kB"


def _one_size(size: int, found: dict[tuple[str, int], dict[str, Any]]) -> list[Row]:
    """The threads, memory and CPU of corral and of bare asyncio."""
    ours, bare = found["corral", size], found["asyncio", size]
    title = f"{size:,} agents at the same moment"
    memory, threads = ours["memory"], ours["threads"]
    return [
        Row(
            f"{title}: threads",
            f"{threads:.0f}",
            f"bare asyncio {bare['threads']:.0f}",
            None,
            Bar(f"≤ {THREADS}", threads <= THREADS),
        ),
        Row(
            f"{title}: memory each",
            kilobytes(memory),
            f"bare asyncio {kilobytes(bare['memory'])}",
            memory / bare["memory"],
            Bar(f"≤ {AGENT_BYTES / 1000:.0f} kB", memory <= AGENT_BYTES),
        ),
        Row(
            f"{title}: parent's CPU each",
            ms(ours["cpu"]),
            f"bare asyncio {ms(bare['cpu'])}",
            ours["cpu"] / bare["cpu"],
        ),
    ]


def trees(bench: BenchEnvironment) -> list[Row]:
    """Ending process trees: in how many tries a process survives, and how long it takes.
    Those that ignore SIGTERM have a grace period of 100 ms."""

    def measure(way: str, kind: str, count: int) -> dict[str, Any]:
        argv = [str(bench.python), str(PROGRAMS / "process_trees.py"), way, kind, str(count)]
        return run_json(argv, bench.env, bench.project)

    def cell(figures: dict[str, Any]) -> str:
        tries = len(figures["times"])
        return f"{figures['survived']} of {tries} in {median(figures['times']) * 1000:.1f} ms"

    rows: list[Row] = []
    for kind in KINDS:
        ours = measure("corral", kind, bench.rounds(TREES))
        for way, name in (("asyncio", "terminate, kill"), ("killpg", "killpg")):
            theirs = measure(way, kind, bench.rounds(PEER_TREES))
            rows.append(
                Row(
                    f"survivors of a tree: {kind}",
                    cell(ours),
                    f"{name} {cell(theirs)}",
                    median(ours["times"]) / median(theirs["times"]),
                    Bar("0 survive", ours["survived"] == 0),
                )
            )
        progress(".")
    progress("\n")
    return rows
