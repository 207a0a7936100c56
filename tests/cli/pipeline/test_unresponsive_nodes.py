"""``corral pipeline run`` with nodes that do not stop, and readers that do not read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.pipeline_command import CORRAL, corral, put

WAYS = ["--no-durable", "--db=runs.db"]
STEPS = """
import asyncio, time
from pathlib import Path
from corral._cli.ui import signals
from corral.events import Text
from corral.pipelines import handler
from corral._engine import memory_runner
from corral._pipelines.execution import attempt

signals.BLOCKED = attempt.STOP_TIMEOUT = memory_runner.STOP_TIMEOUT = 0.2
try:
    from corral._engine.worker import executor
    executor.BLOCKED = 0.2
except ImportError:
    pass

@handler("my.blocks")
async def blocks(work):
    Path("began").touch()
    time.sleep(1000)

@handler("my.spins")
async def spins(work):
    Path("began").touch()
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass

@handler("my.flood")
async def flood(work):
    for _ in range(2000):
        work.emit(Text(delta="x" * 200))

@handler("my.last")
async def last(work):
    Path("finished").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.02)

@handler("my.deaf")
async def deaf(work):
    while True:
        Path("began").touch()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
"""
UNRESPONSIVE = """digraph unresponsive {{
    start [shape=Mdiamond]; done [shape=Msquare]
    stuck [type="{kind}"]
    start -> stuck -> done
}}"""


FLOOD = """digraph flood {
    start [shape=Mdiamond]; done [shape=Msquare]
    flood [type="my.flood"]; last [type="my.last"]
    start -> flood -> last -> done
}"""


def wait_until_exists(there: Path) -> None:
    until = time.monotonic() + 60
    while not there.exists():
        assert time.monotonic() < until, f"{there} never came"
        time.sleep(0.01)


def begin(workspace: Path, graph: str, *words: str) -> subprocess.Popen[str]:
    (workspace / "steps.py").write_text(STEPS)
    return subprocess.Popen(
        [CORRAL, "pipeline", "run", put(workspace, graph), "--import", "steps", *words],
        cwd=workspace,
        env={**os.environ, "PYTHONPATH": str(workspace)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", ["my.blocks", "my.spins", "my.deaf"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.deep_but_first
def test_ctrl_c_ends_a_run_whose_node_does_not_stop(workspace: Path, kind: str, way: str) -> None:
    running = begin(workspace, UNRESPONSIVE.format(kind=kind), way)
    try:
        wait_until_exists(workspace / "began")
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130, stderr
    assert "stuck" in stderr.partition("stop")[0], stderr
    assert "did not" in stderr
    assert "Traceback" not in stderr


@pytest.mark.deep
def test_a_worker_that_is_blocked_by_a_node_ends_on_a_signal(workspace: Path) -> None:
    graph = UNRESPONSIVE.format(kind="my.blocks")
    follower = begin(workspace, graph, "--db=runs.db", "--queue=default")
    words = ("worker", "--db=runs.db", "--import=steps", "--drain=0")
    env = {**os.environ, "PYTHONPATH": str(workspace)}
    worker = subprocess.Popen(
        [CORRAL, *words], cwd=workspace, env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until_exists(workspace / "began")
        worker.send_signal(signal.SIGTERM)
        _, stderr = worker.communicate(timeout=60)
    finally:
        for process in (worker, follower):
            process.kill()
            process.communicate()
    assert worker.returncode == 1, stderr
    assert "stuck.1" in stderr


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.deep_but_first
def test_a_slow_reader_delays_neither_the_run_nor_ctrl_c(workspace: Path, way: str) -> None:
    running = begin(workspace, FLOOD, way, "--json")
    try:
        wait_until_exists(workspace / "finished")
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == 130
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()
    finally:
        running.kill()
        running.communicate()


@pytest.mark.deep
def test_a_closed_pipe_ends_the_command_and_the_run_can_be_resumed(workspace: Path) -> None:
    running = begin(workspace, FLOOD, "--db=runs.db", "--json")
    assert running.stdout is not None
    try:
        first = json.loads(running.stdout.readline())
        running.stdout.close()
        assert running.wait(timeout=60) != 0
        assert running.stderr is not None
        with running.stderr:
            stderr = running.stderr.read()
    finally:
        running.kill()
        running.wait()
    assert "Traceback" not in stderr
    assert f"corral runs resume {first['run_id']} --db runs.db" in stderr
    (workspace / "go").touch()
    env = {"PYTHONPATH": str(workspace)}
    words = ("resume", first["run_id"], "--db=runs.db", "--import", "steps")
    done = corral("runs", *words, cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
