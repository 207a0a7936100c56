"""Run ``corral`` and ``corral pipeline`` as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from support.durable_processes import shared_fork_server

CORRAL = str(Path(sys.executable).with_name("corral"))
EXAMPLES = Path(__file__).parents[2] / "examples"

TINY = """digraph tiny {
    start [shape=Mdiamond]
    a [prompt="go"]
    done [shape=Msquare]
    start -> a -> done
}"""
GATE = """digraph gate {
    start [shape=Mdiamond]
    ask [shape=hexagon, label="Ship it?"]
    ship [shape=parallelogram, tool_command="echo shipped"]
    keep [shape=parallelogram, tool_command="echo kept"]
    done [shape=Msquare]
    start -> ask
    ask -> ship [label="[Y] Yes"]
    ask -> keep [label="[N] No"]
    ship -> done
    keep -> done
}"""


def corral(
    *words: str, cwd: Path, stdin: str = "", env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run ``corral`` with these arguments, without a terminal. The process is forked from one that
    has loaded the engine, because loading takes longer than most commands."""
    server = shared_fork_server()
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("in", "out", "err")]
        for path in streams:
            path.write_text(stdin if path.name == "in" else "", encoding="utf-8")
        pid = server.request(
            do="cli",
            words=words,
            cwd=str(cwd),
            env={**os.environ, **(env or {})},
            streams=[str(path) for path in streams],
        )
        code = server.wait(pid, timeout)
        stdout, stderr = (path.read_text("utf-8") for path in streams[1:])
        if code is None:
            os.kill(pid, signal.SIGKILL)
            server.wait(pid, timeout)
            raise subprocess.TimeoutExpired(words, timeout, stdout, stderr)
    return subprocess.CompletedProcess([CORRAL, *words], code, stdout, stderr)


def fresh_corral(
    *words: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """The same, but as a new process of the installed program."""
    return subprocess.run(
        [CORRAL, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def pipeline(
    *words: str, cwd: Path, stdin: str = "", env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return corral("pipeline", *words, cwd=cwd, stdin=stdin, env=env, timeout=timeout)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What it wrote with ``--json``, a line each."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def put(folder: Path, text: str, name: str = "p.dot") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return name
