"""Makes the archives of this folder: what the corral of an earlier commit stored.

``make.py COMMIT...`` runs the code of each commit with this environment, offline, and packs its
home and its working directory into ``DATE-COMMIT.tar.xz``. ``make.py HEAD`` after a change of a
format keeps what the corral before it wrote. Each archive has

* sessions: one of the built-in agent, one of a scripted Gemini CLI, with its recording;
* a database with runs that ended, that wait for a person, and that wait for a worker; since
  20261119 also runs of a workflow, one that waits for a person and one whose step was interrupted;
* batches that ended and that wait for a worker, with their file of results.
"""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from corral.testing import ModelServer, Turn

HERE = Path(__file__).parent
PLACE = Path("/tmp/corral-earlier-version")
"""Where the commands run. Its path is in what they store, so it is the same everywhere."""
SCRIPTED_GEMINI = HERE.parent / "programs" / "scripted_gemini.py"

STEPS = """digraph steps {
    goal="say hello"
    start [shape=Mdiamond]; exit [shape=Msquare]
    greet [prompt="Say hello"]; list [type="tool", tool_command="echo listed"]
    start -> greet -> list -> exit
}"""
GATE = """digraph gate {
    goal="be approved"
    start [shape=Mdiamond]; exit [shape=Msquare]
    greet [prompt="Say hello"]; approve [shape=hexagon, label="Ship it?"]
    start -> greet -> approve
    approve -> exit [label="Yes"]
    approve -> greet [label="No"]
}"""
HELLO = """import corral
from corral.workflows import Flow


@corral.workflow
async def hello(flow: Flow) -> str:
    await flow.run("gemini-cli", "Say hello", name="greet")
    await flow.parallel([flow.command(f"echo {n} >> begun", name=f"part_{n}") for n in (1, 2)])
    await flow.random()
    await flow.command("echo slow >> begun; test ! -e waits || sleep 60", name="slow")
    return await flow.ask("Ship it?", ["yes", "no"])
"""


class EarlierVersion:
    """The code of one commit, with its own home."""

    def __init__(self, commit: str, place: Path) -> None:
        self.place, self.home, self.work = place, place / "home", place / "work"
        shutil.rmtree(place, ignore_errors=True)
        self.work.mkdir(parents=True)
        source = subprocess.run(
            ["git", "archive", commit, "src"], cwd=HERE.parents[1], capture_output=True, check=True
        )
        with tarfile.open(fileobj=io.BytesIO(source.stdout)) as archive:
            archive.extractall(place / "code", filter="data")
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(place / "user"),
            "CORRAL_HOME": str(self.home),
            "PYTHONPATH": str(place / "code" / "src"),
            "GEMINI_API_KEY": "scripted-key-0123456789",
            "CORRAL_PROBE": "never",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "corral", *words],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, code: int = 0) -> None:
        process = self.start(*words)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == code, f"{words}: {process.returncode}\n{output}"

    def run_until(self, stored: Callable[[], bool], *words: str) -> None:
        """Run it until this is stored; then kill it."""
        process = self.start(*words)
        for _ in range(600):
            if stored():
                break
            time.sleep(0.1)
        else:
            raise TimeoutError(f"{words}: {process.communicate()[0]}")
        process.kill()
        process.communicate()

    def count_queued(self, name: str) -> int:
        with closing(sqlite3.connect(self.home / "engine.db")) as opened:
            select = "SELECT count(*) FROM workflow_status WHERE name = ? AND status = 'ENQUEUED'"
            ((count,),) = opened.execute(select, (name,)).fetchall()
        return int(count)

    def fill(self) -> None:
        (self.work / "steps.dot").write_text(STEPS)
        (self.work / "gate.dot").write_text(GATE)
        (self.work / "hello.py").write_text(HELLO)
        (self.work / "tasks.jsonl").write_text('{"id": "one"}\n{"id": "two"}\n')
        with ModelServer([Turn(text="hello", repeat="forever")]) as server:
            self.env["GOOGLE_GEMINI_BASE_URL"] = server.env["GOOGLE_GEMINI_BASE_URL"]
            self.run("run", "--model", "gemini:gemini-2.5-flash", "Say hello")
        program = shutil.copy(SCRIPTED_GEMINI, self.place)
        scripted = ["--agent", "gemini-cli", "--program", str(program)]
        recording = str(self.work / "recording.jsonl")
        self.run("run", *scripted, "--record-to", recording, "init\ntext hello\nresult")
        self.run("pipeline", "run", "steps.dot", "--simulate")
        self.run("pipeline", "run", "gate.dot", "--simulate", code=10)
        later = ["--simulate", "--queue", "later"]
        self.run_until(
            lambda: self.count_queued("corral.run") > 0, "pipeline", "run", "steps.dot", *later
        )
        batch = ["batch", "tasks.jsonl", "--prompt", "Say {{id}}"]
        self.run(*batch, "--output", "results.jsonl", "--simulate")
        self.run_until(
            lambda: self.count_queued("corral.node") > 1, *batch, "--name", "queued", *later
        )
        self.run("workflow", "run", "hello.py", "--simulate", "--run-id", "hello-asks", code=10)
        (self.work / "waits").touch()
        log = self.work / "begun"
        self.run_until(
            lambda: log.read_text().count("slow") == 2,
            *("workflow", "run", "hello.py", "--simulate", "--run-id", "hello-killed"),
        )
        (self.work / "waits").unlink()

    def pack(self, target: Path) -> None:
        for database in self.home.glob("*.db"):
            with closing(sqlite3.connect(database)) as opened:
                opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                opened.execute("VACUUM")
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for name in ("home", "work"):
                archive.add(self.place / name, name, filter=_plain)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what belongs to the machine: owners, sockets, the processes that ran."""
    if not (info.isfile() or info.isdir()) or "/live/" in info.name:
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def make(commit: str) -> Path:
    show = ["git", "show", "-s", "--format=%cd-%h", "--date=format:%Y%m%d-%H%M", "--abbrev=8"]
    name = subprocess.run(
        [*show, commit], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()
    earlier = EarlierVersion(commit, PLACE)
    earlier.fill()
    target = HERE / f"{name}.tar.xz"
    earlier.pack(target)
    return target


if __name__ == "__main__":
    for commit in sys.argv[1:]:
        target = make(commit)
        print(target.name, target.stat().st_size)
