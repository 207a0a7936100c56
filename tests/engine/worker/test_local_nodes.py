"""Nodes that run in the process of their run, as tasks: the journal, kills, cancellations."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable

import pytest
from support.durable_processes import (
    TIMEOUT,
    DurableProcesses,
    is_alive,
    parallel_graph,
    wait_until,
)

from corral._engine import query, service
from corral._engine.dbos.client import connect
from corral._engine.dbos.database import find
from corral._engine.worker.node_workflow import MAIL_POLL


def journal(processes: DurableProcesses) -> list[str]:
    """The names of the entries in the journal of the run."""
    with connect(find(processes.db)) as client:
        return [entry.name for entry in client.journal("r")]


def test_nodes_of_a_run_in_this_process_have_no_workflows(processes: DurableProcesses) -> None:
    graph = parallel_graph(20, 'type="t.step"')
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    assert processes.wait_for_run().status == "success"
    assert len(processes.attempt_counts()) == 20
    with connect(find(processes.db)) as client:
        assert not client.list_workflows(prefix="r/")
    # Nodes that end together share a step.
    assert 1 <= journal(processes).count("nodes") < 20


def test_results_of_local_branches_are_not_mixed_up_by_a_kill(processes: DurableProcesses) -> None:
    """The branch that starts last ends first, and the process is killed in between, twice."""
    branches = range(12)
    chains = "\n".join(
        f'x{i} [type="t.step", sleep={(12 - i) * 0.08}]; y{i} [type="t.step", sleep=0.05];'
        f" fork -> x{i} -> y{i} -> join"
        for i in branches
    )
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; join [shape=tripleoctagon]\n"
        f"fork [shape=component, max_parallel=12]; start -> fork; join -> exit\n{chains} }}"
    )
    for moment in (12, 14):
        killed = processes.run(graph, kill_at=moment)
        assert processes.wait(killed) == -signal.SIGKILL, processes.output()
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    closed = processes.wait_for_run()
    assert closed.status == "success"
    results = closed.context["parallel.results"]
    assert isinstance(results, list)
    assert len(results) == 12
    details = asyncio.run(query.show("r", db=processes.db))
    for visit, outcome in details.visits.items():
        if visit[0] in "xy":  # each visit has its own result
            assert outcome.context_updates == {f"done.{visit.partition('.')[0]}": visit}
    # What is in the journal was not run again.
    ended = [line.split()[1] for line in processes.lines() if line.startswith("end")]
    assert set(ended) == {f"{name}{i}.1#1" for i in branches for name in "xy"}


SEEDS = [pytest.param(n, marks=[] if n == 0 else pytest.mark.deep) for n in range(10)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_in_one_process_completes_while_it_is_killed_at_random(
    processes: DurableProcesses, seed: int
) -> None:
    """Detached commands in parallel branches: none of them is started twice."""
    chance, log = random.Random(seed), processes.log
    chains = "\n".join(
        f'{name}{i} [shape=parallelogram, tool_command="echo begin {name}{i}.1#1 >> {log};'
        f' sleep 0.{i + 2}"]'
        for i in range(3)
        for name in "xy"
    ) + "".join(f"fork -> x{i} -> y{i} -> join\n" for i in range(3))
    graph = (
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; join [shape=tripleoctagon]\n"
        f"fork [shape=component, max_parallel=3]; start -> fork; join -> exit\n{chains} }}"
    )
    for _ in range(5):
        running = processes.run(graph, detached=True)
        time.sleep(chance.uniform(0.3, 1.2))
        if is_alive(running):
            processes.kill(running)
    assert processes.wait(processes.run(graph, detached=True)) == 0, processes.output()
    assert processes.wait_for_run().status == "success"
    assert processes.attempt_counts() == {f"{name}{i}.1#1": 1 for i in range(3) for name in "xy"}


def test_a_run_whose_nodes_never_pause_can_be_cancelled(processes: DurableProcesses) -> None:
    """Each node ends at once, so there is always a result to take before the message."""
    graph = """digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; max_visits=1000000
        a [type="t.step"]; start -> a; a -> a [condition="outcome=success"]
        a -> exit [condition="outcome=fail"] }"""
    running = processes.run(graph)
    wait_until(lambda: processes.attempt_counts()["a.3#1"], "the third visit")
    asyncio.run(service.cancel("r", reason="enough", db=processes.db))
    assert processes.wait(running) == 0, processes.output()
    closed = processes.wait_for_run()
    assert (closed.status, closed.reason) == ("cancelled", "enough")


def test_cancelling_a_run_ends_the_commands_of_its_nodes(processes: DurableProcesses) -> None:
    pids = processes.folder / "pids"
    graph = f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; start -> t -> exit
        t [shape=parallelogram, tool_command="echo $$ >> {pids}; sleep 1000"] }}"""
    for detached in (False, True):
        name = f"r{detached}"
        running = processes.run(graph, run=name, detached=detached)
        wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command to start")
        asyncio.run(service.cancel(name, db=processes.db))
        assert processes.wait(running, TIMEOUT) == 0, processes.output()
        wait_until(lambda: not is_alive(int(pids.read_text())), "the command to end")
        pids.unlink()


def test_a_restart_of_the_server_repeats_no_local_node(
    file_processes: DurableProcesses, new_postgres: str, restart_postgres: Callable[[], None]
) -> None:
    processes = file_processes
    processes.db = new_postgres
    running = processes.run(parallel_graph(3, f'type="t.wait", file="{processes.folder}/go"'))
    wait_until(lambda: sum(processes.attempt_counts().values()) == 3, "all nodes to start")
    restart_postgres()
    time.sleep(2 * MAIL_POLL)  # it looks into its inbox while the server restarts
    (processes.folder / "go").touch()
    assert processes.wait(running) == 0, processes.output()
    assert processes.wait_for_run().status == "success"
    assert sorted(processes.attempt_counts().values()) == [1, 1, 1]


def test_a_pause_between_attempts_survives_a_kill(processes: DurableProcesses) -> None:
    """The first attempt is in the journal: after the kill only the second one runs."""
    graph = """digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit
        a [type="t.step", fails=1, max_retries=2] }"""
    killed = processes.run(graph, kill_at=3)
    assert processes.wait(killed) == -signal.SIGKILL, processes.output()
    assert journal(processes).count("nodes") == 1
    assert processes.wait(processes.run(graph)) == 0, processes.output()
    assert processes.wait_for_run().outcomes["a"].attempts == 2
    assert processes.attempt_counts() == {"a.1#1": 1, "a.1#2": 1}
