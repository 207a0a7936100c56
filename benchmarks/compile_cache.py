"""What Node's compile cache saves: CPU time of a real prompt, with and without it."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

from benchmarks.environment import CACHE, HERE, MANAGED, BenchEnvironment
from benchmarks.measure import Candidate, Row, at_most, measure_rounds, program_cpu, progress

ROUNDS = 6
MOST = 0.85
TOOL = HERE.parent / "tools" / "node" / "node_modules"


def compile_cache(bench: BenchEnvironment) -> list[Row]:
    """CPU time of the process tree of ``corral run`` with the Gemini CLI that corral installed,
    against a scripted model. Both sides have the same Node 22. The cache belongs to one of its
    files; the other side has a copy of it, for which no cache was filled."""
    from corral._system.sandbox import bubblewrap
    from corral.testing import ModelServer, Turn

    nodes = sorted(TOOL.glob("*/bin/node"))
    if not nodes or not (MANAGED / "agents" / "gemini").exists():
        progress("Node 22 or the Gemini CLI is not installed: left out (make agents)\n")
        return []
    copy = CACHE / "node-without-cache" / "node"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(nodes[0], copy)
    copy.chmod(0o755)
    base = {**bench.env, "CORRAL_HOME": str(MANAGED)}
    bwrap = bubblewrap.find()
    more = f"{Path(bwrap).parent}:{base['PATH']}" if bwrap else base["PATH"]
    with ModelServer(lambda _: Turn(text="Nothing to do.")) as model:
        base["GOOGLE_GEMINI_BASE_URL"] = model.url
        cached, plain = (
            {**base, "PATH": f"{node.parent}:{more}"} for node in (nodes[0].resolve(), copy)
        )
        subprocess.run(
            [bench.corral, "agents", "install", "--quiet", "gemini"],
            env=cached,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        cases = [
            ("one process per prompt", "gemini-cli", "off"),
            ("persistent (ACP), one prompt", "gemini-acp", "off"),
        ]
        if bwrap:
            cases.append(("one process per prompt, in the sandbox", "gemini-cli", "require"))
        return [_row(bench, *case, cached, plain) for case in cases]


def _row(
    bench: BenchEnvironment,
    what: str,
    agent: str,
    sandbox: str,
    cached: dict[str, str],
    plain: dict[str, str],
) -> Row:
    run = [str(bench.corral), "run", "--agent", agent, "--model", "gemini-2.5-flash"]
    run += ["--sandbox", sandbox, "--no-keep", "--quiet", "go"]

    def candidate(env: dict[str, str]) -> Candidate:
        return Candidate(lambda: program_cpu(run, env, bench.project), bench.rounds(ROUNDS))

    return measure_rounds({"cached": candidate(cached), "plain": candidate(plain)}).row(
        f"a prompt to the real Gemini CLI with Node's compile cache, {what}, CPU of the tree",
        "cached",
        "plain",
        "without",
        partial(at_most, MOST) if agent == "gemini-cli" else None,
    )
