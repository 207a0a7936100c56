"""The run of a workflow that is killed at any moment continues: no step that has ended runs again,
and no work is lost.

``make test`` uses a sample of the moments; the others are marked ``deep``
(``make test-all``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.batches import CountingModel
from support.durable_processes import DurableProcesses, ForkServer, wait_until

from corral._engine import query
from corral.testing import Call, ModelServer, Request, Turn

SHARES = 200
SAMPLE = (3, 97, 180)
"""Not deep."""
SERVER_MOMENTS, SERVER_SAMPLE = 60, (14, 46)
"""About the number of moments of a run on a server."""

PROGRAM = """
import asyncio
import corral
from corral.workflows import Flow

MODEL = "gemini:gemini-2.5-flash"


@corral.workflow
async def build(flow: Flow, log: str) -> dict[str, object]:
    def step(name: str, more: str = "true"):
        return flow.command(f"echo begin {name} >> {log}; {more}", name=name, check=True)

    await step("plan")
    await flow.parallel([step(f"part_{n}", "sleep 0.05") for n in range(3)], max_parallel=2)
    chance, at = await asyncio.gather(flow.random(), flow.now())
    reply = await flow.ask("Go on?", ["yes", "no"])
    await flow.sleep(0.05)
    edits = await asyncio.gather(
        *(flow.run(MODEL, f"task t{n}", policy="edits", worktree=True) for n in range(2))
    )
    await step("merge", "; ".join(f"git merge -q -m m {each.branch}" for each in edits))
    await step("check", "test -f t0.txt && test -f t1.txt")
    return {"reply": reply, "chance": chance, "at": at.timestamp()}
"""
STEPS = ("plan", "part_0", "part_1", "part_2", "merge", "check")


def shares(count: int, sample: tuple[int, ...]) -> list[object]:
    return [
        pytest.param(share, marks=[] if share in sample else pytest.mark.deep)
        for share in range(count)
    ]


def write_file(request: Request) -> Turn:
    """The agent writes one file, and is done."""
    if request.tool_results:
        return Turn(text="done")
    task = "t0" if any("task t0" in text for text in request.texts) else "t1"
    return Turn(calls=[Call("write_file", {"file_path": f"{task}.txt", "content": task})])


class Killed:
    """The processes of one run, and the model of its agents."""

    def __init__(self, processes: DurableProcesses, model: CountingModel) -> None:
        self.processes, self.model = processes, model
        self.model.special = lambda _task, request: write_file(request)
        self.file = processes.folder / "build.py"
        self.file.write_text(PROGRAM)

        def git(*words: str) -> None:
            name = ("-c", "user.name=a", "-c", "user.email=a@b")
            subprocess.run(["git", *name, *words], cwd=processes.workspace, check=True)

        git("init", "-q", "-b", "main")
        git("config", "user.name", "a")
        git("config", "user.email", "a@b")
        git("commit", "-qm", "first", "--allow-empty")

    def run(self, **order: Any) -> int:
        env = {key: os.environ[key] for key in ("HOME", "CORRAL_HOME")} | self.model.env
        args = {"log": str(self.processes.log)}
        return self.processes.workflow(self.file, args, env=env, **order)

    def check(self, moment: str, *, repeats: int = 0) -> None:
        """``repeats``: how many steps may have been started twice."""
        processes = self.processes
        closed = processes.wait_for_run()
        assert closed.status == "success", (closed.reason, processes.output())
        started: Counter[str] = Counter(line.split()[1] for line in processes.lines())
        asked = {task: self.model.counts[task] for task in ("t0", "t1")}
        assert set(started) == set(STEPS), moment
        more = started.total() - len(STEPS)
        # An agent asks its model twice; one that is interrupted, once or twice more.
        more += sum(-(-(count - 2) // 2) for count in asked.values())
        assert min(asked.values()) >= 2, moment
        assert 0 <= more <= repeats, (moment, started, asked)
        assert closed.context["result"]["reply"] == "yes"  # type: ignore[index,call-overload]


@pytest.fixture(scope="module")
def moments(
    fork_server: ForkServer, model_server: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> int:
    """The number of moments of a run that is not killed."""
    folder = tmp_path_factory.mktemp("not-killed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "CORRAL_HOME"):
            patch.setenv(name, str(folder / name))
        processes = DurableProcesses(fork_server, str(folder / "engine.db"), folder)
        killed = Killed(processes, CountingModel(model_server, "not killed"))
        try:
            assert processes.wait(killed.run(kill_at=0)) == 0, processes.output()
            killed.check("none")
            return int(processes.moments.read_text())
        finally:
            processes.close()


@pytest.mark.parametrize("share", shares(SHARES, SAMPLE))
@pytest.mark.deep_but_first
def test_a_workflow_continues_after_a_kill(
    file_processes: DurableProcesses,
    model_server: ModelServer,
    moments: int,
    share: int,
    request: pytest.FixtureRequest,
) -> None:
    killed = Killed(file_processes, CountingModel(model_server, request.node.name))
    at = 1 + share * (moments - 1) // (SHARES - 1)
    code = file_processes.wait(killed.run(kill_at=at))
    if code == -signal.SIGKILL:
        moment = file_processes.moments.read_text()
        assert file_processes.wait(killed.run()) == 0, file_processes.output()
    else:  # it had fewer moments than the run that counted them
        moment = "end"
        assert code == 0, file_processes.output()
        assert share > SHARES * 0.9
    killed.check(moment)


@pytest.mark.postgres
@pytest.mark.parametrize("moment", shares(SERVER_MOMENTS, SERVER_SAMPLE))
def test_a_workflow_on_a_server_continues_after_a_kill(
    fork_server: ForkServer,
    new_postgres: str,
    model_server: ModelServer,
    tmp_path: Path,
    moment: int,
    request: pytest.FixtureRequest,
) -> None:
    """Its agents and commands are in its own process, so what runs at the kill runs again."""
    processes = DurableProcesses(fork_server, new_postgres, tmp_path)
    killed = Killed(processes, CountingModel(model_server, request.node.name))
    try:
        code = processes.wait(killed.run(kill_at=moment + 1))
        assert code in (0, -signal.SIGKILL), processes.output()
        assert processes.wait(killed.run()) == 0, processes.output()
        killed.check(str(moment), repeats=2)
    finally:
        processes.close()


@pytest.mark.postgres
def test_a_worker_on_a_server_takes_over_the_workflow_of_another(
    fork_server: ForkServer, new_postgres: str, model_server: ModelServer, tmp_path: Path
) -> None:
    processes = DurableProcesses(fork_server, new_postgres, tmp_path)
    killed = Killed(processes, CountingModel(model_server, "two workers"))
    try:
        first = processes.worker(env=env_of(killed))
        run = killed.run(queue="default")
        wait_until(lambda: "begin part_0" in processes.lines(), "the second step")
        processes.kill(first)
        processes.worker(env=env_of(killed))
        assert processes.wait(run) == 0, processes.output()
        details = asyncio.run(query.show("r", db=processes.db))
        assert details.output is not None
        assert details.output.ok, processes.output()
        # On a server an agent or a command ends with its worker: what ran then runs again.
        killed.check("part_0", repeats=2)
    finally:
        processes.close()


def env_of(killed: Killed) -> dict[str, str]:
    return {key: os.environ[key] for key in ("HOME", "CORRAL_HOME")} | killed.model.env
