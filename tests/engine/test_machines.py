"""Machines that share only a database and a repository; all by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.durable_processes import TIMEOUT, is_alive, wait_until
from support.pipeline_command import CORRAL
from support.repositories import bare, git, repository

from corral._engine import query
from corral._engine.query import RunDetails

__all__ = ["bare", "repository"]

GRAPH = """digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]
    ask [shape=hexagon, label="Go on?"]
    a [shape=parallelogram, tool_command="echo two >> file; pwd >> {log}/a"]
    b [shape=parallelogram, tool_command="echo $$ > {log}/pid; pwd >> {log}/b
        until test -e {log}/go; do sleep 0.05; done
        cat file > copy; echo note > $ATTRACTOR_LOGS_ROOT/artifacts/note"]
    start -> a -> b -> ask; ask -> exit [label="[Y] Yes"]; ask -> b [label="[N] No"] }}"""


class Machines:
    def __init__(self, db: str, folder: Path) -> None:
        self.db, self.folder = db, folder
        self.graph = folder / "p.dot"
        self.graph.write_text(GRAPH.format(log=folder))
        self.processes: list[subprocess.Popen[str]] = []
        self.names: dict[str, subprocess.Popen[str]] = {}

    def start(self, machine: str, *words: str) -> subprocess.Popen[str]:
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [CORRAL, *words, "--db", self.db],
            cwd=home,
            env={**os.environ, "CORRAL_HOME": str(home / "corral")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def worker(self, machine: str) -> None:
        worker = self.names[machine] = self.start(machine, "worker", "--drain", "0")
        assert worker.stderr
        assert "serving" in worker.stderr.readline()

    def output_of(self, machine: str, *words: str) -> str:
        done = self.start(machine, "pipeline", *words)
        out, err = done.communicate(timeout=TIMEOUT)
        assert done.returncode == 0, err
        return out

    def run(self, *words: str) -> str:
        """Start a run on the queue; returns its id."""
        process = self.start(
            "mine", "pipeline", "run", str(self.graph), "--queue", "default", *words
        )
        assert process.stderr
        first = process.stderr.readline()
        assert first.startswith("run "), first + process.stderr.read()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
        return first.split()[1]

    def show(self, run: str) -> RunDetails:
        return asyncio.run(query.show(run, db=self.db))

    def machine_of(self, node: str) -> str:
        """The machine on which this node has started."""
        log = self.folder / node
        wait_until(lambda: log.exists() and log.read_text(), f"{node} to begin")
        return Path(log.read_text()).relative_to(self.folder).parts[0]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=60)


@pytest.fixture
def machines(new_postgres: str, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(new_postgres, tmp_path)
    yield made
    made.close()


@pytest.mark.deep
def test_another_machine_continues_a_run_from_the_saved_work(
    machines: Machines, bare: Path, tmp_path: Path
) -> None:
    machines.worker("one")
    run = machines.run("--repository", f"file://{bare}", "--artifacts", f"file://{tmp_path}/left")
    assert machines.machine_of("b") == "one"
    assert git(bare, "show", f"corral/{run}:file") == "one\ntwo"
    os.kill(machines.names["one"].pid, signal.SIGKILL)
    (tmp_path / "b").unlink()
    machines.worker("two")
    assert machines.machine_of("b") == "two"
    (tmp_path / "go").touch()
    wait_until(lambda: machines.show(run).questions, "the gate")
    machines.output_of("mine", "answer", run, "Y")
    wait_until(lambda: machines.show(run).output, "the end")
    found = json.loads(machines.output_of("mine", "show", run, "--json"))
    assert found["status"] == "success"
    assert found["branch"] == f"corral/{run}"
    assert found["files"] == ["copy", "file"]
    assert git(bare, "show", f"{found['commit']}:copy") == "one\ntwo"
    assert sorted(path.name for path in (tmp_path / "left" / run).iterdir()) == [
        "changes.patch",
        "note",
    ]
    assert not list((tmp_path / "two" / "corral" / "workspaces").glob("*/tree"))
    assert (tmp_path / "a").read_text().count("\n") == 1


@pytest.mark.deep
def test_cancelling_ends_a_command_on_another_machine(
    machines: Machines, bare: Path, tmp_path: Path
) -> None:
    machines.worker("one")
    run = machines.run("--repository", str(bare))
    machines.machine_of("b")
    command = int((tmp_path / "pid").read_text())
    assert is_alive(command)
    assert "is cancelled" in machines.output_of("mine", "cancel", run)
    wait_until(lambda: not is_alive(command), "the command to end")
    wait_until(lambda: machines.show(run).output, "the end")
    assert f"branch     corral/{run} at" in machines.output_of("mine", "show", run)
    assert git(bare, "show", f"corral/{run}:file") == "one\ntwo"
