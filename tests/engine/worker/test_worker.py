"""Several workers: each node runs once, dead workers are replaced, limits hold."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys

import pytest
from support.durable_processes import (
    CHAIN,
    DurableProcesses,
    is_alive,
    parallel_graph,
    submit,
    wait_until,
)

from corral._engine import query, run_list, service
from corral._pipelines.scheduler.commands import Ended


def at_once(processes: DurableProcesses) -> int:
    """The largest number of nodes that ran at the same time, by the log."""
    running: set[str] = set()
    most = 0
    for line in processes.lines():
        what, name, *_ = line.split()
        if what == "begin":
            running.add(name)
        else:
            running.discard(name)
        most = max(most, len(running))
    return most


def test_two_workers_share_the_nodes_and_run_none_twice(processes: DurableProcesses) -> None:
    workers = {processes.worker(at_once=4), processes.worker(at_once=4)}
    submit(processes, parallel_graph(8, 'type="t.step", sleep=0.5'))
    assert processes.wait_for_run().status == "success"
    assert sorted(processes.attempt_counts().values()) == [1] * 8
    assert {int(line.split()[2]) for line in processes.lines()} == workers


@pytest.mark.deep_but_first
def test_another_worker_takes_over_the_work_of_a_killed_one(processes: DurableProcesses) -> None:
    first = processes.worker()
    submit(processes, f'digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare];'
           f' a [type="t.wait", file="{processes.folder}/go"]; start -> a -> exit }}')  # fmt: skip
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    second = processes.worker()
    processes.kill(first)
    wait_until(lambda: processes.attempt_counts()["a.1#1"] == 2, "the node to be taken over")
    (processes.folder / "go").touch()
    assert processes.wait_for_run().status == "success"
    assert processes.attempt_counts() == {"a.1#1": 2}
    assert [int(line.split()[2]) for line in processes.lines()] == [first, second]


def test_all_nodes_end_although_one_of_four_workers_is_killed(processes: DurableProcesses) -> None:
    workers = [processes.worker() for _ in range(4)]
    submit(processes, parallel_graph(8, 'type="t.step", sleep=0.7'))
    wait_until(lambda: sum(processes.attempt_counts().values()) >= 4, "half of the nodes to start")
    processes.kill(workers[0])
    assert processes.wait_for_run().status == "success"
    started = processes.attempt_counts()
    assert set(started) == {f"n{i}.1#1" for i in range(8)}
    ended = [line.split()[1] for line in processes.lines() if line.startswith("end")]
    # A worker may be killed after its node has logged the end and before the journal has it.
    assert set(ended) == set(started)


def test_a_killed_worker_uses_up_no_limit(processes: DurableProcesses) -> None:
    limit = [{"resource": "scarce", "everywhere": 2}]
    first = processes.worker(limits=limit)
    submit(
        processes, parallel_graph(4, f'type="t.wait", queue=scarce, file="{processes.folder}/go"')
    )
    wait_until(lambda: sum(processes.attempt_counts().values()) == 2, "two nodes to start")
    processes.kill(first)
    (processes.folder / "go").touch()
    processes.worker(limits=limit)
    assert processes.wait_for_run().status == "success"


@pytest.mark.parametrize("limit", [{"everywhere": 2}, {"each": 1}, {"everywhere": 2, "each": 1}])
def test_a_limit_holds_over_two_workers(processes: DurableProcesses, limit: dict[str, int]) -> None:
    for _ in range(2):
        processes.worker(limits=[{"resource": "scarce", **limit}])
    submit(processes, parallel_graph(5, 'type="t.step", queue=scarce, sleep=0.2'))
    assert processes.wait_for_run().status == "success"
    assert at_once(processes) <= 2
    assert sorted(processes.attempt_counts().values()) == [1] * 5


def test_other_processes_do_not_start_a_running_node_again(processes: DurableProcesses) -> None:
    processes.worker()
    graph = (
        f"digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare];"
        f' a [type="t.wait", file="{processes.folder}/go"]; start -> a -> exit }}'
    )
    submit(processes, graph)
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    # One process runs another graph, one resumes the same run, and one only lists runs.
    other = re.sub("digraph d", "digraph e", graph).replace(f"{processes.folder}/go", "/")
    assert processes.wait(processes.run(other, "other")) == 0, processes.output()
    resumed = processes.run(graph, "r")
    assert [each.id for each in asyncio.run(run_list.list_runs(db=processes.db))] == ["other", "r"]
    assert asyncio.run(query.show("r", db=processes.db)).status == "running"
    (processes.folder / "go").touch()
    assert processes.wait(resumed) == 0, processes.output()
    assert processes.attempt_counts()["a.1#1"] == 2  # the node of the other run has the same id


def test_a_suspended_worker_changes_nothing_after_its_work_was_taken_over(
    processes: DurableProcesses,
) -> None:
    first = processes.worker()
    graph = (
        f'digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; b [type="t.step"]'
        f' a [type="t.wait", file="{processes.folder}/go"]; start -> a -> b -> exit }}'
    )
    submit(processes, graph)
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    processes.suspend(first)
    # It still holds its lease, so its work is moved by force, as after a network partition.
    take_work_of(processes, first)
    processes.worker()
    (processes.folder / "go").touch()
    assert processes.wait_for_run().completed == ["start", "a", "b", "exit"]
    os.kill(first, signal.SIGCONT)
    shown = asyncio.run(query.show("r", db=processes.db))
    assert [each.id for each in shown_messages(processes)] == ["a.1", "b.1"]
    assert shown.status == "success"
    assert processes.attempt_counts()["b.1#1"] == 1


def take_work_of(processes: DurableProcesses, pid: int) -> None:
    """Put the workflows of this process back on their queues, although it lives."""
    from corral._engine.dbos.client import DatabaseClient, with_client
    from corral._engine.dbos.database import find

    name = (processes.folder / "ready1").read_text()

    def move(client: DatabaseClient) -> None:
        for each in client.list_workflows(states=["running"]):
            if each.executor == name:
                client.resume([each.id], each.queue)

    assert str(pid) in name
    asyncio.run(with_client(find(processes.db), move))


def shown_messages(processes: DurableProcesses) -> list[Ended]:
    from corral._engine import query
    from corral._engine.dbos.client import with_client
    from corral._engine.dbos.database import find

    found = asyncio.run(
        with_client(find(processes.db), lambda c: query.replay_run(c, "r")[1].messages)
    )
    return [each for each in found if isinstance(each, Ended)]


def test_a_node_that_kills_its_workers_fails(processes: DurableProcesses) -> None:
    graph = (
        'digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; b [type="t.step"]'
        ' a [type="t.kill", error_policy=continue]; start -> a -> b -> exit }'
    )
    submit(processes, graph)
    constants = {"node_workflow.RECOVERIES": 1, "run_workflow.CHECK": 0.3}
    for _ in range(2):
        worker = processes.start(
            "work", queue_names=["default"], ready="/dev/null", constants=constants
        )
        assert processes.wait(worker) == -signal.SIGKILL, processes.output()
    processes.worker(constants=constants)
    closed = processes.wait_for_run()
    assert "died too many times" in closed.outcomes["a"].failure_reason
    assert closed.completed == ["start", "a", "b", "exit"]
    assert processes.attempt_counts() == {"a.1#1": 2, "b.1#1": 1}


def test_the_first_signal_lets_running_nodes_finish(processes: DurableProcesses) -> None:
    worker = processes.worker(drain=60.0)
    submit(processes, f'digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare];'
           f' a [type="t.wait", file="{processes.folder}/go"]; b [type="t.step"];'
           f' start -> a -> b -> exit }}')  # fmt: skip
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    os.kill(worker, signal.SIGTERM)
    (processes.folder / "go").touch()
    assert processes.wait(worker) == 0, processes.output()
    processes.worker()
    assert processes.wait_for_run().status == "success"
    assert processes.attempt_counts() == {"a.1#1": 1, "b.1#1": 1}


def test_a_second_signal_ends_the_worker_at_once(processes: DurableProcesses) -> None:
    worker = processes.worker(drain=1000.0)
    submit(processes, 'digraph d { start [shape=Mdiamond]; exit [shape=Msquare];'
           ' a [type="t.wait", file="/never"]; start -> a -> exit }')  # fmt: skip
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    os.kill(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGINT)
    assert processes.wait(worker) == 0, processes.output()


def test_cancelling_a_run_ends_a_command_that_is_not_detached(
    processes: DurableProcesses,
) -> None:
    worker = processes.worker()
    pids = processes.folder / "pids"
    submit(
        processes,
        f"""digraph d {{ start [shape=Mdiamond]; exit [shape=Msquare]; start -> t -> exit
        t [shape=parallelogram, tool_command="echo $$ > {pids}; sleep 1000"] }}""",
        detached=False,
    )
    wait_until(lambda: pids.exists() and pids.read_text().strip(), "the command to start")
    asyncio.run(service.cancel("r", db=processes.db))
    assert processes.wait_for_run().status == "cancelled"
    wait_until(lambda: not is_alive(int(pids.read_text())), "the command to end")
    processes.kill(worker)


def test_a_run_notices_that_its_node_was_cancelled_from_outside(
    processes: DurableProcesses,
) -> None:
    from corral._engine.dbos.client import with_client
    from corral._engine.dbos.database import find

    processes.worker(constants={"run_workflow.CHECK": 0.3})
    submit(
        processes,
        'digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; b [type="t.step"]'
        ' a [type="t.wait", file="/never", error_policy=continue]; start -> a -> b -> exit }',
    )
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    asyncio.run(with_client(find(processes.db), lambda client: client.cancel(["r/a.1"])))
    closed = processes.wait_for_run()
    assert "cancelled from outside" in closed.outcomes["a"].failure_reason
    assert closed.completed == ["start", "a", "b", "exit"]


def test_a_manager_node_runs_its_child_pipeline(processes: DurableProcesses) -> None:
    (processes.workspace / "inner.dot").write_text(
        "digraph inner { start [shape=Mdiamond]; exit [shape=Msquare]; start -> x -> y -> exit;"
        f' x [type="t.wait", file="{processes.folder}/go"]; y [type="t.step"] }}'
    )
    processes.worker()
    submit(
        processes,
        "digraph outer { start [shape=Mdiamond]; exit [shape=Msquare];"
        ' manager [shape=house, stack.child_dotfile="inner.dot", manager.poll_interval="200ms"];'
        " start -> manager -> exit }",
    )
    wait_until(lambda: processes.attempt_counts()["x.1#1"], "the child's node to start")
    (processes.folder / "go").touch()
    closed = processes.wait_for_run()
    assert closed.completed == ["start", "manager", "exit"]
    assert closed.context["stack.child.status"] == "completed"
    assert processes.attempt_counts() == {"x.1#1": 1, "y.1#1": 1}


def test_a_lease_that_is_lost_for_a_moment_starts_no_node_again(
    file_processes: DurableProcesses, new_postgres: str
) -> None:
    import psycopg

    processes = file_processes
    processes.db = new_postgres
    first = processes.worker()
    submit(
        processes,
        "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; start -> a -> exit"
        f' a [type="t.wait", file="{processes.folder}/go"] }}',
    )
    wait_until(lambda: processes.attempt_counts()["a.1#1"], "the node to start")
    processes.worker()
    with psycopg.connect(new_postgres, autocommit=True) as server:
        ours = "application_name = 'corral lease' AND datname = current_database()"
        ended = server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}".encode()
        ).fetchall()
        assert len(ended) >= 2
        repeated = f"SELECT count(*) FROM pg_stat_activity WHERE {ours}".encode()
        wait_until(lambda: server.execute(repeated).fetchone() == (2,), "new leases")
    # The new leases work: the node is taken over when its worker dies, and not before.
    assert processes.attempt_counts() == {"a.1#1": 1}
    processes.kill(first)
    wait_until(lambda: processes.attempt_counts()["a.1#1"] == 2, "the node to be taken over")
    (processes.folder / "go").touch()
    assert processes.wait_for_run().status == "success"


OTHER_FORMAT = (
    "from corral._core import stored_formats; stored_formats.JOURNAL += 1;"
    "from corral._cli.main import main; main()"
)
"""The command line of a corral whose runs are stored in another format."""
SIMULATED = "digraph d { start [shape=Mdiamond]; exit [shape=Msquare]; a; start -> a -> exit }"


@pytest.mark.deep
def test_workers_of_two_formats_on_one_queue_each_take_their_own(
    processes: DurableProcesses,
) -> None:
    def start(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", OTHER_FORMAT, *words, "--queue", "default"]
        return subprocess.Popen(
            [*argv, "--db", processes.db],
            cwd=processes.workspace,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def statuses() -> dict[str, str]:
        newest_first = asyncio.run(run_list.list_runs(db=processes.db))
        return {row.id[:1]: row.status for row in reversed(newest_first)}

    (processes.workspace / "d.dot").write_text(SIMULATED)
    submit(processes, CHAIN, run="r")
    other_worker = start("worker")
    done = start("pipeline", "run", "d.dot", "--simulate")
    output, _ = done.communicate(timeout=60)
    assert done.returncode == 0, output
    assert statuses() == {"d": "success", "r": "queued"}
    other_worker.terminate()
    reported, _ = other_worker.communicate(timeout=60)
    assert "tasks on the queues of this worker are stored in format" in reported

    waiting = start("pipeline", "run", "d.dot", "--simulate")
    wait_until(lambda: statuses()["d"] == "queued", "the run of the other format to be queued")
    processes.worker()
    assert processes.wait_for_run("r").status == "success"
    assert statuses() == {"d": "queued", "r": "success"}
    waiting.kill()
    waiting.communicate()
