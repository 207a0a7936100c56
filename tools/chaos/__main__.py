"""Faulted runs of every surface of corral, and a table of what became of them.

    python -m chaos [--count 1000] [--seed SEED] [--only PATTERN] [--jobs N] [--keep DIR]
        [--skip-unfaulted]

Each run is faulted at a random moment; the seed decides about all of them and is printed. A case
has a name, ``SURFACE/FAULT/plain or sandbox/scripted or gemini/NUMBER``; ``--only`` takes a pattern
of such names. The exit code is 1 if a run did not end, claimed what was not true, or left anything.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos import agents, plan, table
from chaos.case import Case, Verdict
from chaos.faults import FAULTS, NO_FAULT
from chaos.supervisor import in_fork, supervise
from chaos.surfaces import SURFACES
from support.installed_agents import managed

from corral._system.sandbox.sandbox import describe, find_support

PREPARE = (
    "import sys; from corral._engine.dbos import database as d; d.prepare(d.find(sys.argv[1]))"
)
"""In its own process: this one only forks, and must have one thread."""
ATTEMPTS = 4
"""A run that was over before the fault is repeated with an earlier moment."""
SPANS = {"run": 0.8, "session": 1.2, "pool": 1.2, "batch": 4.0, "pipeline": 4.0, "worker": 5.0}
"""Seconds within which the fault happens. In the sandbox, and with a real agent, there is more."""


@dataclass
class Chaos:
    """``template`` is an empty database; ``keep`` the folder to which wrong cases are moved."""

    template: Path
    gemini: str
    keep: Path | None
    results: table.Results = field(default_factory=table.Results)
    missed: int = 0

    def attempt(self, case: Case) -> Verdict:
        """In a fork: run the case, and again if the fault came too late."""
        verdict = Verdict(has_struck=False)
        for attempt in range(ATTEMPTS):
            folder = Path(tempfile.mkdtemp(prefix="chaos-"))
            span = SPANS[case.surface] * (5 if case.uses_gemini else 1) / 2**attempt
            verdict = in_fork(lambda: self._supervise(case, folder, span))  # noqa: B023
            if not verdict.is_right and self.keep is not None:
                shutil.move(folder, self.keep / case.name.replace("/", "-").replace(" ", "-"))
            shutil.rmtree(folder, ignore_errors=True)
            if verdict.has_struck or not verdict.is_right:
                break
        return verdict

    def _supervise(self, case: Case, folder: Path, span: float) -> Verdict:
        agent = None
        if case.uses_gemini:
            chance = case.chance("agent")
            name = (
                "gemini-acp"
                if case.surface == "pool"
                else chance.choice(["gemini-acp", "gemini-cli"])
            )
            agent = agents.real_gemini(name, self.gemini)
        fault = FAULTS.get(case.fault, NO_FAULT)
        return supervise(
            case, SURFACES[case.surface], fault, folder=folder, template=self.template,
            agent=agent, span=span,
        )  # fmt: skip

    def add(self, case: Case, verdict: Verdict) -> None:
        if not verdict.has_struck and verdict.is_right:
            self.missed += 1
            return
        self.results.append((case, verdict))
        if not verdict.is_right:
            print(f"\nWRONG {case.name}", *verdict.problems, sep="\n  ", flush=True)
        if len(self.results) % 50 == 0:
            print(f"{len(self.results)} runs", flush=True)


def run_all(chaos: Chaos, cases: list[Case], jobs: int) -> None:
    """Run the cases, ``jobs`` at a time, each in a process."""
    waiting = iter(cases)
    running: dict[int, tuple[Case, int]] = {}
    is_more = True
    while running or is_more:
        while is_more and len(running) < jobs:
            case = next(waiting, None)
            if case is None:
                is_more = False
                break
            reader, pid = _start(chaos, case)
            running[reader] = (case, pid)
        for reader in select.select([*running], [], [])[0] if running else ():
            case, pid = running.pop(reader)
            with os.fdopen(reader, "rb") as answers:
                data = answers.read()
            os.waitpid(pid, 0)
            chaos.add(case, Verdict.decode(data))


def _start(chaos: Chaos, case: Case) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        os.write(writer, chaos.attempt(case).encode())
        os._exit(0)
    os.close(writer)
    return reader, pid


@contextmanager
def scripted_model() -> Generator[str]:
    """The address of a model for the real Gemini CLI."""
    with subprocess.Popen(
        [sys.executable, "-m", "chaos.model"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        assert server.stdin is not None
        server.stdin.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", default="")
    parser.add_argument("--only", default="*")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1)
    parser.add_argument("--keep", type=Path, help="move the folders of wrong runs there")
    parser.add_argument("--skip-unfaulted", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = parse()
    seed = given.seed or secrets.token_hex(4)
    support = find_support()
    gemini = managed("gemini-cli")
    has_gemini = os.path.exists(gemini) and shutil.which("node") is not None
    print(f"SEED={seed} COUNT={given.count}", flush=True)
    if not support.is_complete:
        print(f"no sandbox: {describe(support)}")
    if not has_gemini:
        print("the real Gemini CLI is not installed: scripted agents only")
    for name, fault in FAULTS.items():
        if not fault.is_possible():
            print(f"not possible on this machine: {name}")
    cases = plan.cases(
        given.count, seed, only=given.only, can_box=support.is_complete, has_gemini=has_gemini
    )
    began = time.monotonic()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chaos-template-") as folder, scripted_model() as url:
        template = Path(folder) / "runs.db"
        subprocess.run([sys.executable, "-c", PREPARE, template], check=True)
        os.environ["CHAOS_MODEL"] = url
        chaos = Chaos(template, gemini, given.keep)
        if not given.skip_unfaulted:
            run_all(
                chaos,
                plan.unfaulted(seed, can_box=support.is_complete, has_gemini=has_gemini),
                given.jobs,
            )
        if not all(verdict.is_right for _, verdict in chaos.results):
            print("a surface does not work without a fault")
            return 1
        chaos.results.clear()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            run_all(chaos, cases, given.jobs)
        except KeyboardInterrupt:
            print("interrupted; the results so far:")
    print(f"\n{table.as_markdown(chaos.results, FAULTS, SURFACES)}\n")
    print(table.summary(chaos.results))
    print(f"{time.monotonic() - began:.0f} s; {chaos.missed} runs ended before their fault")
    return 0 if all(verdict.is_right for _, verdict in chaos.results) else 1


if __name__ == "__main__":
    sys.exit(main())
