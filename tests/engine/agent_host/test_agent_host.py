"""Jobs in an agent host continue when their worker dies, and the next worker finds them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import namespace
from support.descriptors import free_descriptors
from support.durable_processes import DurableProcesses, is_alive, wait_until

from corral._engine import service
from corral._engine.agent_host import client
from corral._engine.agent_host.client import HostFiles, Job, StoredOutcome
from corral._engine.agent_host.server import CRASHES
from corral._engine.payloads import RunConfig, RunInput
from corral._pipelines import node_kinds
from corral._pipelines.execution import handlers
from corral._pipelines.graph import Graph
from corral._pipelines.scheduler.commands import RunNode
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._system import fs, platform


def pipeline(
    processes: DurableProcesses, *, then: str = "", attrs: str = "", timeout: str = ""
) -> str:
    """A command that logs its start, waits for a file ``go``, and logs its end."""
    log = processes.log
    work = then or wait_for_go(processes)
    command = f"echo begin slow.1#1 >> {log}; {work}; echo end >> {log}"
    return f"""digraph one {{
        start [shape=Mdiamond]; exit [shape=Msquare]
        slow [shape=parallelogram, tool_command="{command}" {attrs}]
        start -> slow -> exit
    }}"""


def wait_for_go(processes: DurableProcesses) -> str:
    return f"while ! test -e {processes.folder}/go; do sleep 0.02; done"


def let_go_on(processes: DurableProcesses) -> None:
    (processes.folder / "go").touch()


def wait_for_start(processes: DurableProcesses, times: int = 1) -> None:
    wait_until(
        lambda: processes.attempt_counts()["slow.1#1"] >= times,
        f"the command to start: {processes.output()}",
    )


def host_pid(run: str = "r") -> int:
    return int((HostFiles.for_run(run).folder / "pid").read_text())


def test_a_command_survives_its_worker_and_is_found_by_the_next_one(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    graph = pipeline(processes)
    first = processes.run(graph)
    wait_for_start(processes)
    processes.kill(first)
    second = processes.run(graph)
    let_go_on(processes)
    assert processes.wait(second) == 0, processes.output()
    assert processes.wait_for_run().status == "success"
    assert processes.attempt_counts() == {"slow.1#1": 1}


def test_a_command_that_ended_without_a_worker_is_not_run_again(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    graph = pipeline(processes)
    first = processes.run(graph)
    wait_for_start(processes)
    processes.kill(first)
    let_go_on(processes)
    wait_until(lambda: "end" in processes.lines(), "the command to end")
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    assert processes.attempt_counts() == {"slow.1#1": 1}


def test_jobs_start_again_if_what_they_use_ended_with_their_worker(
    file_processes: DurableProcesses,
) -> None:
    """As often as that happens: the job has killed no host."""
    processes = file_processes
    graph = pipeline(processes)
    running = processes.run(graph)
    hosts = set[int]()
    for count in range(1, CRASHES + 1):
        wait_for_start(processes, count)
        hosts.add(host_pid())
        processes.kill(running)
        running = processes.run(graph, restarts_jobs=True)
    wait_for_start(processes, CRASHES + 1)
    let_go_on(processes)
    assert processes.wait(running) == 0, processes.output()
    assert processes.wait_for_run().status == "success"
    assert len(hosts) == CRASHES


def test_only_what_another_start_may_help_loses_its_result() -> None:
    files = HostFiles.for_run("r")
    stored = {
        "done": StoredOutcome(outcome=Outcome()),
        "cancelled": StoredOutcome(),
        "refused": StoredOutcome(outcome=failed("no key", retryable=False)),
        "lost": StoredOutcome(outcome=failed("connection refused", retryable=True)),
        "unknown": StoredOutcome(outcome=failed("exit code 1")),
    }
    for name, result in stored.items():
        files.job(name).mkdir(parents=True)
        files.write_result(name, result)
    client.retire("r")
    assert {name for name in stored if files.result(name)} == {*stored}
    client.retire("r", at_once=True)
    assert {name for name in stored if files.result(name)} == {"done", "cancelled", "refused"}


def test_after_a_killed_host_the_command_is_started_again(file_processes: DurableProcesses) -> None:
    processes = file_processes
    pids = processes.folder / "pids"
    run = processes.run(pipeline(processes, then=f"echo $$ >> {pids}; {wait_for_go(processes)}"))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    os.kill(host_pid(), signal.SIGKILL)
    wait_for_start(processes, 2)
    assert not is_alive(int(pids.read_text().split()[0])), (
        "the first command runs beside the second"
    )
    let_go_on(processes)
    assert processes.wait(run) == 0, processes.output()
    assert processes.wait_for_run().status == "success"
    assert processes.attempt_counts() == {"slow.1#1": 2}


def test_on_crash_fail_does_not_start_a_node_twice(file_processes: DurableProcesses) -> None:
    processes = file_processes
    run = processes.run(pipeline(processes, attrs=", on_crash=fail"))
    wait_for_start(processes)
    os.kill(host_pid(), signal.SIGKILL)
    assert processes.wait(run) == 0, processes.output()
    slow = processes.wait_for_run().outcomes["slow"]
    assert slow.status == "fail"
    assert "crash interrupted it" in slow.failure_reason
    assert processes.attempt_counts() == {"slow.1#1": 1}


def test_a_command_that_kills_its_host_three_times_fails(file_processes: DurableProcesses) -> None:
    processes = file_processes
    # The parent of the command's parent is the host.
    graph = pipeline(processes, then="kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID; sleep 1")
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    assert "3 times" in processes.wait_for_run().outcomes["slow"].failure_reason
    assert processes.attempt_counts() == {"slow.1#1": 3}


def test_other_jobs_of_a_killed_host_succeed(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    kill = "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID; sleep 1"
    nodes: list[str] = []
    for name in ("n0", "n1", "n2", "poison"):
        start = f"echo begin {name} >> {processes.log}"
        # It kills the host when all jobs run; the others run until it has failed.
        all_started = f"while test $(sort -u {processes.log} | wc -l) -lt 4; do sleep 0.02; done"
        work = f"{start}; {all_started}; {kill if name == 'poison' else wait_for_go(processes)}"
        nodes.append(f'{name} [shape=parallelogram, tool_command="{work}"]; fork -> {name} -> join')
    run = processes.run(
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> fork; join -> exit;"
        ' fork [shape=component, max_parallel=4, join_policy="wait_all"];'
        f" join [shape=tripleoctagon]; {'; '.join(nodes)} }}"
    )
    wait_until(
        lambda: processes.attempt_counts()["poison"] == 3,
        f"three starts of poison: {processes.output()}",
    )
    wait_until(lambda: processes.attempt_counts()["n2"] == 2, "the other jobs to start again")
    let_go_on(processes)
    assert processes.wait(run) == 0, processes.output()
    closed = processes.wait_for_run()
    assert closed.outcomes["poison"].status == "fail"
    assert "agent host was killed while it ran, 3 times" in closed.outcomes["poison"].failure_reason
    assert [closed.outcomes[name].status for name in ("n0", "n1", "n2")] == ["success"] * 3
    assert processes.attempt_counts() == {"n0": 2, "n1": 2, "n2": 2, "poison": 3}
    wait_until(lambda: not HostFiles.for_run("r").folder.exists(), "all hosts to exit")


@pytest.mark.deep
def test_cancelling_a_run_ends_isolated_jobs(file_processes: DurableProcesses) -> None:
    processes = file_processes
    pids = processes.folder / "pids"
    run = processes.run(pipeline(processes, then=f"echo $$ >> {pids}; sleep 1000"))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    os.kill(host_pid(), signal.SIGKILL)
    wait_until(lambda: len(pids.read_text().split()) == 2, "the second start")
    asyncio.run(service.cancel("r", db=processes.db))
    assert processes.wait(run) == 0, processes.output()
    assert processes.wait_for_run().status == "cancelled"
    wait_until(
        lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()),
        "the command to end",
    )
    wait_until(lambda: not HostFiles.for_run("r").folder.exists(), "the host to exit")


def test_cancelling_a_run_ends_its_command(file_processes: DurableProcesses) -> None:
    processes = file_processes
    pids = processes.folder / "pids"
    run = processes.run(pipeline(processes, then=f"echo $$ > {pids}; sleep 1000"))
    wait_for_start(processes)
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    asyncio.run(service.cancel("r", db=processes.db))
    assert processes.wait(run) == 0, processes.output()
    assert processes.wait_for_run().status == "cancelled"
    pid = int(pids.read_text())
    wait_until(lambda: not is_alive(pid), "the command to end")
    wait_until(lambda: not HostFiles.for_run("r").folder.exists(), "the host to exit")


@pytest.mark.parametrize("attrs", ["", ", detached=false"])
def test_cancelling_an_interrupted_run_ends_its_command(
    file_processes: DurableProcesses, attrs: str
) -> None:
    processes = file_processes
    pids = processes.folder / "pids"
    run = processes.run(pipeline(processes, then=f"echo $$ > {pids}; sleep 1000", attrs=attrs))
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command's pid")
    processes.kill(run)
    asyncio.run(service.cancel("r", reason="no more", db=processes.db))
    closed = processes.wait_for_run()
    assert (closed.status, closed.reason) == ("cancelled", "no more")
    wait_until(lambda: not is_alive(int(pids.read_text())), "the command to end")
    wait_until(lambda: not HostFiles.for_run("r").folder.exists(), "the host to exit")


def test_a_host_exits_and_removes_its_files_when_its_run_has_ended(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    let_go_on(processes)
    assert processes.wait(processes.run(pipeline(processes))) == 0, processes.output()
    wait_until(lambda: not HostFiles.for_run("r").folder.exists(), "the host to exit")


@pytest.mark.parametrize("detached", ["false", "true"])
def test_the_attribute_detached_of_a_node_decides(
    file_processes: DurableProcesses, detached: str
) -> None:
    processes = file_processes
    run = processes.run(
        pipeline(processes, attrs=f", detached={detached}"), detached=detached != "true"
    )
    wait_for_start(processes)
    assert HostFiles.for_run("r").folder.exists() == (detached == "true")
    let_go_on(processes)
    assert processes.wait(run) == 0, processes.output()


def test_node_kinds_that_run_in_a_host_are_built_in() -> None:
    for kind in (kind for kind in node_kinds.KINDS.values() if kind.detached):
        assert handlers.find(kind.name).__module__.startswith("corral._pipelines.nodes.")


def test_on_crash_fail_applies_to_a_node_in_the_worker_too(
    file_processes: DurableProcesses,
) -> None:
    processes = file_processes
    graph = pipeline(processes, attrs=", on_crash=fail, detached=false")
    run = processes.run(graph)
    wait_for_start(processes)
    processes.kill(run)
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    assert "crash interrupted it" in processes.wait_for_run().outcomes["slow"].failure_reason
    assert processes.attempt_counts() == {"slow.1#1": 1}


def test_a_job_directory_without_a_job_file_is_submitted_again() -> None:
    """A worker may be killed between the two."""
    files = HostFiles.for_run("half")
    name = client.job_name("t.1", 1)
    run_input = RunInput(
        run_id="half",
        graph=Graph(name="g"),
        config=RunConfig(folder="/f", workspace="/w"),
        queue="p",
    )
    files.job(name).mkdir(parents=True)
    files.requests.mkdir()
    job = Job(visit=RunNode(id="t.1", node="t", number=1, context={}), attempt=1)
    try:
        files.submit(run_input, name, job)
        assert (files.job(name) / "job.json").exists()
    finally:
        client.close("half", cancel=True)


def test_the_end_of_a_run_without_free_descriptors_is_no_error_and_its_host_finds_it() -> None:
    files = HostFiles.for_run("r")
    files.open()
    files.gate.touch()
    # A directory in its place fails as a missing descriptor does: with an OSError.
    files.gate.unlink()
    files.gate.mkdir()
    client.close("r", cancel=True)
    assert files.end.is_dir()


def ended_without_a_host() -> HostFiles:
    """The files of a run whose host could not be started."""
    files = HostFiles.for_run("r")
    files.job("j").mkdir(parents=True)
    files.open()
    for each in (files.gate, files.lock, files.run, files.job("j") / "job.json"):
        each.touch()
    return files


def test_the_files_of_a_host_that_never_started_are_removed_without_free_descriptors() -> None:
    files = ended_without_a_host()
    with free_descriptors(0):
        client.close("r", cancel=True)
    assert list(files.folder.parent.iterdir()) == []


def test_files_that_cannot_be_removed_at_the_end_of_a_run_are_removed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = ended_without_a_host()
    later: list[object] = []
    monkeypatch.setattr(atexit, "register", later.append)
    # As if the hard limit forbade more.
    monkeypatch.setattr(platform, "extra_descriptors", contextlib.nullcontext)
    with free_descriptors(0):
        client.close("r")
    assert files.folder.exists()
    assert later == [client.remove_trash]
    with fs.exclusive_lock(files.lock):  # a host runs
        client.remove_trash()
    with fs.exclusive_lock(files.gate):  # a job is being submitted
        client.remove_trash()
    assert files.folder.exists()
    client.remove_trash()
    assert list(files.folder.parent.iterdir()) == []


FULL = """
import os, sys
from pathlib import Path
from support import namespace
from corral._engine.agent_host import client
namespace.enter()
home = Path(os.environ["CORRAL_HOME"])
home.mkdir(parents=True)
namespace._mount("tmpfs", str(home), "tmpfs", 0, "nr_inodes=40,mode=700")
files = client.HostFiles.for_run("r")
files.job("j").mkdir(parents=True)
files.open()
for each in (files.gate, files.run, files.job("j") / "job.json", files.job("j") / "result.json"):
    each.touch()
with open(files.lock, "w") as lock:
    client.fs.try_lock(lock.fileno())  # a host runs
    try:
        for number in range(100):
            (home / str(number)).touch()
    except OSError as error:
        print(error.strerror)
    client.close("r", cancel=True)
    print(files.end.exists())
client.remove_trash()
print(files.folder.exists())
"""


@pytest.mark.skipif(not namespace.is_allowed(), reason="no user namespaces")
def test_the_end_of_a_run_is_marked_on_a_full_disk() -> None:
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        env={**os.environ, "PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n") == ["No space left on device", "True", "False", ""], done.stderr


def test_the_files_of_a_run_that_has_not_ended_stay() -> None:
    files = ended_without_a_host()
    client.remove_trash()
    assert files.run.exists()


def test_a_directory_whose_removal_was_interrupted_is_removed_later() -> None:
    files = HostFiles.for_run("r")
    trash = files.folder.with_name(f".{files.folder.name}.0123abcd")
    (trash / "jobs" / "a").mkdir(parents=True)
    (trash / "jobs" / "a" / "job.json").touch()
    (trash / "end").mkdir()
    client.remove_trash()
    assert not trash.exists()


FAILS = """
import os, time
while not os.path.exists({path!r}):
    time.sleep(0.01)
raise RuntimeError("can't start new thread")
"""
"""A module that fails when it is imported, once a file exists."""


def start_failing_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> HostFiles:
    """Start a host that fails as soon as ``folder / "fail"`` exists."""
    (folder / "fails_at_import.py").write_text(FAILS.format(path=str(folder / "fail")))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    config = RunConfig(folder="/f", workspace="/w", imports=("fails_at_import",))
    run_input = RunInput(run_id="r", graph=Graph(name="g"), config=config, queue="p")
    visit = RunNode(id="t.1", node="t", number=1, context={})
    files = HostFiles.for_run("r")
    files.submit(run_input, client.job_name("t.1", 1), Job(visit=visit, attempt=1))
    assert fs.is_locked(files.lock)
    return files


def test_a_host_that_fails_after_the_end_of_its_run_removes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = start_failing_host(tmp_path, monkeypatch)
    client.close("r", cancel=True)
    assert files.end.exists()
    (tmp_path / "fail").touch()
    wait_until(lambda: not files.folder.exists(), "the files to be removed")


def test_the_files_of_a_host_that_failed_are_removed_at_the_end_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = start_failing_host(tmp_path, monkeypatch)
    (tmp_path / "fail").touch()
    wait_until(lambda: not files.lock.exists(), "the lock to be removed")
    wait_until(lambda: "can't start new thread" in files.log.read_text(), "the error in the log")
    assert files.run.exists()
    client.close("r", cancel=True)
    assert not files.folder.exists()


KILLED = """
import os, sys, time
from corral._engine.agent_host import client
client.close("r", cancel=True)
files = client.HostFiles.for_run("r")
os.kill(int((files.folder / "pid").read_text()), 9)
while client.fs.is_locked(files.lock):
    time.sleep(0.01)
print(files.end.exists())
"""


def test_the_files_of_a_host_that_is_killed_after_its_run_are_removed_by_the_process_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = start_failing_host(tmp_path, monkeypatch)
    wait_until((files.folder / "pid").exists, "the host to start")
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert not files.folder.exists()
